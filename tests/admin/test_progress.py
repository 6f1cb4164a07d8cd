"""The bar: who sees it, and what it leaves behind."""

import io
import re
from typing import Any

import pytest

from lattice_tasks.admin.progress import progress
from lattice_tasks.admin.screen import Screen

from .conftest import Terminal


def shown(err: io.StringIO, *steps: int, label: str = "replaying", total: int = 4, **more: Any) -> str:
    """What the bar wrote; standard output must stay clean."""
    screen = Screen(Terminal(), err, **more)
    with progress(screen, label, total) as advance:
        for count in steps:
            advance(count)
    assert screen.out.getvalue() == ""
    return err.getvalue()


def test_on_a_terminal_it_counts_and_ends_as_one_line_with_the_cursor_shown() -> None:
    written = shown(Terminal(), 1, 3)

    assert [re.search(r"\d/4", part)[0] for part in written.split("\r")[1:]] == ["0/4", "1/4", "4/4"]
    assert written.count("replaying") == 3
    assert written.endswith("\x1b[?25h\n")
    assert written.count("\n") == 1


@pytest.mark.parametrize(
    ("err", "more"), [(io.StringIO(), {}), (Terminal(), {"is_quiet": True}), (Terminal(), {"total": 0})]
)
def test_off_a_terminal_when_quiet_and_for_nothing_it_shows_nothing(err: io.StringIO, more: dict[str, Any]) -> None:
    assert shown(err, *([] if "total" in more else [4]), **more) == ""


def test_it_is_plain_and_a_label_cannot_steer_the_terminal() -> None:
    written = shown(Terminal(), 4, label="re\x1b[31mplay\ning", colour="always")

    assert "re\\x1b[31mplay ing" in written
    assert re.findall(r"\x1b\[[0-9;]*m", written) == []


def test_an_error_in_between_leaves_the_cursor_shown_and_goes_on() -> None:
    err = Terminal()

    with pytest.raises(ZeroDivisionError), progress(Screen(Terminal(), err), "replaying", 4):
        raise ZeroDivisionError

    assert err.getvalue().endswith("\x1b[?25h\n")

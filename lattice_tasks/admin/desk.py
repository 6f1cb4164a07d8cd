"""What every command works with: the options given, the screen, and one `Lattice` that is built on first use.

Here, too, is the one way in which a command asks a person before it destroys something.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO
from urllib.parse import unquote

import click

from lattice_tasks import insights
from lattice_tasks.admin.escape import one_line
from lattice_tasks.admin.options import Change
from lattice_tasks.admin.screen import Screen
from lattice_tasks.app import Lattice
from lattice_tasks.audit import Act, operator
from lattice_tasks.errors import LatticeError
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings, load
from lattice_tasks.store.engine import Session

__all__ = ["Desk", "pass_desk"]

_MOST_TEXT = 500  # characters of a refusal in the audit

CONFLICT, PARTLY, UNCONFIRMED, TIMED_OUT = 4, 5, 6, 75


class Desk:
    """One run of the command line."""

    def __init__(
        self,
        make_lattice: Callable[..., Lattice] = Lattice,
        out: TextIO | None = None,
        err: TextIO | None = None,
        stdin: TextIO | None = None,
    ) -> None:
        self.given: dict[str, Any] = {}
        self._make_lattice = make_lattice
        self._stdin = stdin or sys.stdin
        self._screen = Screen(out or sys.stdout, err or sys.stderr)
        self._lattice: Lattice | None = None

    @property
    def screen(self) -> Screen:
        """The screen, as the options given so far want it."""
        self._screen.form = self.given.get("output", "table")
        self._screen.colour = self.given.get("color") or ("never" if os.environ.get("NO_COLOR") else "auto")
        self._screen.is_quiet = bool(self.given.get("quiet"))
        return self._screen

    @property
    def is_verbose(self) -> bool:
        """Whether `-v` was given."""
        return bool(self.given.get("verbose"))

    def settings(self, **more: Any) -> Settings:
        """What flags, environment and file add up to.

        Raises:
            SettingsError: one of them is wrong.
        """
        return load({**self._connections(), **more}, config=self.given.get("config"))

    @property
    def lattice(self) -> Lattice:
        """The one `Lattice` of this run. Its log lines are warnings only, unless more is asked for."""
        if self._lattice is None:
            level = ("warning", "info", "debug")[min(2, self.given.get("verbose", 0))]
            self._tell_of_new_file()
            self._lattice = self._make_lattice(
                **self._connections(),
                config=self.given.get("config"),
                set_default=False,
                log_level="error" if self.given.get("quiet") else level,
            )
        return self._lattice

    def adopt(self, lattice: Lattice) -> None:
        """Work with the `Lattice` of an app from now on, whose store is its own affair."""
        self._lattice = lattice

    @contextmanager
    def session(self) -> Iterator[tuple[Session, int]]:
        """A session for pictures, and the namespace's id; from then on the screen knows the store's clock."""
        namespace_id = self.lattice.namespace_id
        with self.lattice.engine.session() as session:
            self._screen.now = insights.store_now(session)
            yield session, namespace_id

    def store_is_missing(self) -> bool:
        """Whether the store is a file that does not exist yet."""
        url = self.settings().store_url
        return url.startswith("sqlite:") and not _file_of(url).exists()

    def read_clock(self) -> None:
        """Let the screen know the store's clock, for what it shows as so long ago."""
        with self.session():
            return

    def confirm(self, change: Change, question: str) -> None:
        """Ask before something is destroyed; returns only when it may be.

        Raises:
            click.exceptions.Exit: with 6: refused, or nobody is there to ask and `--yes` is missing.
        """
        if change.yes or change.is_dry:
            return
        if not (self._stdin.isatty() and self.screen.err.isatty()):
            self.fail(UNCONFIRMED, f"{question} Nothing was done: there is no terminal to ask on; add --yes")
        self.screen.err.write(f"{question} [y/N] ")
        self.screen.err.flush()
        if self._stdin.readline().strip().lower() not in ("y", "yes"):
            self.fail(UNCONFIRMED, "nothing was done")

    @property
    def operator(self) -> str:
        """Who works here, as the audit names them."""
        return operator(os.environ)

    def acting(self, change: Change, target: str) -> AbstractContextManager[Act]:
        """The way to change something in one transaction: see `Audit.acting`, whose record names this command.

        Nothing inside may wait for a person. Fill in `before` and `after` of the act: settings and ids, no payloads.
        """
        return self.lattice.audit.acting(_verb(), target, who=self.operator, reason=change.reason)

    @contextmanager
    def in_parts(self, change: Change, target: str, **intended: Any) -> Iterator[Act]:
        """The way to change something in many transactions: see `Audit.in_parts`. A refusal is kept as it is told here."""
        audit, who = self.lattice.audit, self.operator
        with audit.in_parts(_verb(), target, who=who, reason=change.reason, intended=intended) as act:
            try:
                yield act
            except (LatticeError, click.ClickException, _Refusal) as error:
                text = error.format_message() if isinstance(error, click.ClickException) else str(error)
                act.after = {**act.after, "error": one_line(masked(text))[:_MOST_TEXT]}
                raise

    def fail(self, code: int, text: str) -> NoReturn:
        """End with one line and an exit code."""
        self.screen.complain(f"error: {text}")
        raise _Refusal(code, text)

    def close(self) -> None:
        """Let go of the store and of what is still to be written."""
        self._screen.flush()
        if self._lattice is not None:
            self._lattice.close()

    def _connections(self) -> dict[str, Any]:
        return {name: self.given.get(name) for name in ("store_url", "broker_url", "namespace")}

    def _tell_of_new_file(self) -> None:
        """Somebody in the wrong folder should see why everything is empty."""
        if self.store_is_missing():
            path = _file_of(self.settings().store_url)
            self.screen.note(f"note: {path} does not exist in {Path.cwd()}; a new, empty store is made there")


class _Refusal(click.exceptions.Exit):
    """An exit whose reason was told."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)
        self._text = text

    def __str__(self) -> str:
        return self._text


def _file_of(url: str) -> Path:
    return Path(unquote(url.removeprefix("sqlite:///").split("?")[0]))


def _verb() -> str:
    """The command under way, as a person types it after the program's name."""
    return click.get_current_context().command_path.partition(" ")[2]


pass_desk = click.make_pass_decorator(Desk)

"""A bar for work that takes a while: on standard error, on a terminal; a full one stays there as a line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from lattice_tasks.admin.escape import one_line
from lattice_tasks.admin.screen import Screen

__all__ = ["progress"]


@contextmanager
def progress(screen: Screen, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Within the block, call what is handed out with the number of steps done since the last call."""
    with click.progressbar(
        length=total,
        label=one_line(label),
        show_pos=True,
        file=screen.err,
        hidden=screen.is_quiet or not total or not screen.err.isatty(),
    ) as bar:
        yield bar.update

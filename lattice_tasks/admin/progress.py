"""A bar for work that takes a while: on standard error, on a terminal, and gone when the work is done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lattice_tasks.admin.escape import one_line
from lattice_tasks.admin.screen import Screen

__all__ = ["progress"]


@contextmanager
def progress(screen: Screen, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Within the block, call what is handed out with the number of steps done since the last call."""
    if screen.is_quiet or not screen.err.isatty():
        yield lambda steps: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(file=screen.err, no_color=not screen.may_colour(screen.err), highlight=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(one_line(label), total=total)
        yield lambda steps: bar.advance(task, steps)

"""What a running task may ask about itself."""

from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import datetime

from lattice_tasks import clock
from lattice_tasks.errors import InvalidOperation

__all__ = ["CurrentInvocation", "current"]


@dataclass(frozen=True, slots=True)
class CurrentInvocation:
    """The invocation that this thread runs. `attempt` is 1 for the first execution."""

    id: str
    queue: str
    actor: str
    attempt: int
    submitted_at: datetime


class _Current:
    """`current.invocation` inside a task."""

    def __init__(self) -> None:
        self._variable: ContextVar[tuple[str, str, str, int, int] | None] = ContextVar("lattice_current", default=None)

    @property
    def invocation(self) -> CurrentInvocation:
        """The invocation that this thread runs.

        Raises:
            InvalidOperation: no task runs here.
        """
        facts = self._variable.get()
        if facts is None:
            raise InvalidOperation("current.invocation is only known inside a running task")
        task_id, queue, actor, attempt, submitted_at = facts
        return CurrentInvocation(task_id, queue, actor, attempt, clock.from_us(submitted_at))

    def enter(self, task_id: str, queue: str, actor: str, attempt: int, submitted_at: int) -> Token:
        """Begin an invocation in this thread."""
        return self._variable.set((task_id, queue, actor, attempt, submitted_at))

    def leave(self) -> None:
        """End it."""
        self._variable.set(None)


current = _Current()

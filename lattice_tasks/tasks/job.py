"""`Job`: the handle of one invocation, good in any process that knows its id."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import MAX_ERROR_BYTES, cleaned
from lattice_tasks.errors import (
    InvalidInput,
    NotFinished,
    ResultNotStored,
    TaskCancelled,
    TaskDiscarded,
    TaskExpired,
    TaskNotFound,
    TaskParked,
)
from lattice_tasks.queues.record import Queues
from lattice_tasks.store import invocations as rows
from lattice_tasks.store import settles as moves
from lattice_tasks.store.engine import Engine
from lattice_tasks.tasks.claim import take_back
from lattice_tasks.tasks.invocation import Flag, State, step
from lattice_tasks.tasks.settle import RESULT_DROPPED
from lattice_tasks.tasks.submit import EXAMPLE_ID, require_id
from lattice_tasks.telemetry import Telemetry

__all__ = ["Job", "JobPicture", "Jobs"]

R = TypeVar("R", covariant=True)

_FIRST_LOOK_S, _LAST_LOOK_S = 0.002, 0.1
_ENDS: dict[State, type[NotFinished]] = {
    State.PARKED: TaskParked,
    State.HELD: TaskParked,
    State.CANCELLED: TaskCancelled,
    State.EXPIRED: TaskExpired,
    State.DISCARDED: TaskDiscarded,
}


@dataclass(frozen=True, slots=True)
class JobPicture:
    """An invocation at one moment. `attempt` counts charged failures so far; `error` is that of the last one."""

    id: str
    queue: str
    actor: str
    state: str
    attempt: int
    key: str | None
    priority: int
    submitted_at: datetime
    finished_at: datetime | None
    error: str | None
    entry_id: int | None


class Jobs:
    """Looks up, waits for and cancels invocations of one namespace."""

    def __init__(self, engine: Engine, queues: Queues, namespace_id: Callable[[], int], telemetry: Telemetry) -> None:
        self._engine = engine
        self._queues = queues
        self._namespace_id = namespace_id
        self._telemetry = telemetry

    def picture(self, task_id: str) -> JobPicture:
        """The invocation as it is now.

        Raises:
            TaskNotFound: no such id in the namespace.
        """
        return _picture(self._row(task_id))

    def fetch(self, task_id: str) -> tuple[bool, Any]:
        """(finished well, result).

        Raises:
            TaskParked, TaskCancelled, TaskExpired, TaskDiscarded: it ended otherwise.
            ResultNotStored: it succeeded, but what it returned could not be kept.
            TaskNotFound: no such id in the namespace.
        """
        row = self._row(task_id)
        state = State.of(row.state, row.place)
        if state.is_open:
            return False, None
        if row.replaced_by is not None:
            raise _ENDS[state](row.id, f"is {state}: replaced by {row.replaced_by}")
        if state in _ENDS:
            raise _ENDS[state](row.id, f"is {state}: {row.error or 'no reason was given'}")
        if row.reason == RESULT_DROPPED:
            raise ResultNotStored(row.id, row.error or "its result was not stored")
        return True, None if row.result is None else msgspec.json.decode(row.result)

    def result(self, task_id: str, timeout: float | None) -> Any:
        """The result, waiting for up to `timeout` seconds; None waits for ever.

        Raises:
            TimeoutError: it has not finished in time; asking again is safe.
        """
        give_up_at = None if timeout is None else clock.monotonic() + timeout
        pause_s = _FIRST_LOOK_S
        while True:
            is_done, result = self.fetch(task_id)
            if is_done:
                return result
            wait_s = pause_s * random.uniform(0.75, 1.25)
            if give_up_at is not None:
                left_s = give_up_at - clock.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"task {task_id} has not finished within {timeout} s; it goes on")
                wait_s = min(wait_s, left_s)
            time.sleep(wait_s)
            pause_s = min(_LAST_LOOK_S, pause_s * 1.5)

    def await_end(self, task_id: str, timeout: float) -> JobPicture:
        """The invocation once it is not open any more, or as it is after `timeout` seconds."""
        give_up_at = clock.monotonic() + timeout
        pause_s = _FIRST_LOOK_S
        while True:
            picture = self.picture(task_id)
            left_s = give_up_at - clock.monotonic()
            if not State(picture.state).is_open or left_s <= 0:
                return picture
            time.sleep(min(left_s, pause_s))
            pause_s = min(_LAST_LOOK_S, pause_s * 1.5)

    def cancel(self, task_id: str, reason: str) -> bool:
        """Cancel it: at once when it waits or sleeps, by an interrupt at the next heartbeat when it runs.

        A replay that is cancelled leaves its dead letter as it was, with a note.

        Returns:
            False when it has finished already, whatever the end.

        Raises:
            TaskNotFound: no such id in the namespace.
        """
        reason = cleaned(str(reason), MAX_ERROR_BYTES) or "cancelled"
        while True:
            row = self._row(task_id)
            state = State.of(row.state, row.place)
            if not state.is_open:
                return False
            with self._engine.session() as session, session.transaction():
                if state is State.RUNNING:
                    if moves.cancel_leased(session, row.seq, reason):
                        return True
                    continue  # it moved while we looked
                flags = moves.take_unleased(session, row.queue_id, row.seq)
                if flags is None:
                    continue
                if flags & Flag.REPLAY:
                    take_back(session, row.queue_id, {row.seq: reason})
                else:
                    code = step(state, "cancel").code
                    moves.rest(session, row.seq, code, row.attempt, reason, None, None, None)
            self._telemetry.emit("task.cancelled", queue=row.queue, task_id=row.id, reason=reason)
            return True

    def _row(self, task_id: str) -> rows.InvocationRow:
        with self._engine.session() as session:
            row = rows.find(session, self._namespace_id(), _id_or_none(task_id))
        if row is None:
            raise TaskNotFound(f"no task {task_id!r:.80} in this namespace; ids look like {EXAMPLE_ID}")
        return row


class Job(Generic[R]):
    """The handle of one invocation.

    Attributes:
        id: its UUID, as a string.
        created: False when the key named an existing invocation, which this handle then is.
        args_mismatch: with `created` False: that one was submitted with other arguments.
    """

    def __init__(self, jobs: Jobs, task_id: str, created: bool = True, args_mismatch: bool = False) -> None:
        self._jobs = jobs
        self.id = task_id
        self.created = created
        self.args_mismatch = args_mismatch

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def refresh(self) -> JobPicture:
        """The invocation as it is now."""
        return self._jobs.picture(self.id)

    def result(self, timeout: float | None = None) -> R:
        """What the function returned, waiting for up to `timeout` seconds; None waits for ever.

        Raises:
            TaskParked, TaskCancelled, TaskExpired, TaskDiscarded: there will be no result.
            ResultNotStored: it succeeded, but what it returned was too large or no JSON.
            TimeoutError: not yet; asking again is safe.
        """
        result: R = self._jobs.result(self.id, timeout)
        return result

    def cancel(self, reason: str = "cancelled") -> bool:
        """Cancel it; False when it has finished already."""
        return self._jobs.cancel(self.id, reason)


def _id_or_none(task_id: str) -> str | None:
    try:
        return require_id(task_id)
    except InvalidInput:
        return None


def _picture(row: rows.InvocationRow) -> JobPicture:
    return JobPicture(
        id=row.id,
        queue=row.queue,
        actor=row.actor,
        state=State.of(row.state, row.place).value,
        attempt=row.attempt,
        key=row.key,
        priority=row.priority,
        submitted_at=clock.from_us(row.submitted_at),
        finished_at=None if row.finished_at is None else clock.from_us(row.finished_at),
        error=row.error,
        entry_id=row.entry_id,
    )

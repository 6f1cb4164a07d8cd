"""Accepting invocations: check them, write them, then wake a worker.

Commit, tell the caller, notify: in this order. An insert whose answer was lost is repeated with the same id, so it gives
exactly one invocation.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import uuid_utils

from lattice_tasks import clock
from lattice_tasks.errors import InvalidInput, StoreUnavailable
from lattice_tasks.queues.record import Queues
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.submits import NewInvocation, find_holders, insert_invocations
from lattice_tasks.tasks.arguments import encode_body, is_same_call
from lattice_tasks.telemetry import Telemetry

__all__ = ["EXAMPLE_ID", "Accepted", "Submitter", "new_id", "require_actor", "require_id"]

MAX_BATCH = 10_000
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXAMPLE_ID = "0198c5b2-7d1e-7c4a-9f10-2b6d1c3e4f50"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to one submit: `created` is False when the key named an existing invocation, whose id this is."""

    id: str
    created: bool = True
    args_mismatch: bool = False


def new_id() -> str:
    """A new invocation id: a UUID of version 7, so ids made later sort later."""
    return str(uuid_utils.uuid7())


def require_id(task_id: object) -> str:
    """The id itself, in lower case.

    Raises:
        InvalidInput: it is no UUID.
    """
    if not isinstance(task_id, str) or not _ID.fullmatch(task_id.lower()):
        raise InvalidInput(f"message id {task_id!r:.80} is no UUID; ids look like {EXAMPLE_ID}")
    return task_id.lower()


def require_actor(name: object) -> str:
    """The name itself, when an actor may be called so: 1 to 255 printable characters.

    Raises:
        InvalidInput: it is no such text.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or not name.isprintable():
        raise InvalidInput(f"actor name {name!r:.80} must be a text of 1 to 255 printable characters")
    return name


class Submitter:
    """Writes invocations for one namespace and wakes workers after the commit.

    A single submit is announced before its commit as well, so that the wake-up travels meanwhile: a third of the latency.
    """

    def __init__(
        self,
        engine: Engine,
        queues: Queues,
        settings: Settings,
        telemetry: Telemetry,
        wake: Callable[[Collection[int]], None],
        announce: Callable[[Collection[int]], None],
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._settings = settings
        self._telemetry = telemetry
        self._wake = wake
        self._announce = announce
        self._deferred: ContextVar[_Deferral | None] = ContextVar("lattice_deferred", default=None)

    def draft(
        self,
        queue: str,
        actor: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        *,
        task_id: str | None = None,
        is_follow_up: bool = False,
        key: str | None = None,
        priority: int | None = None,
        delay: timedelta | datetime | None = None,
        deadline: timedelta | datetime | None = None,
    ) -> NewInvocation:
        """A checked invocation that is not written yet; its queue exists.

        Args:
            is_follow_up: it continues one that was accepted, so it is accepted too, and the store need not be there.

        Raises:
            InvalidInput: names the argument that is not acceptable.
            QueueClosed: the queue takes no new invocations.
        """
        require_actor(actor)
        task_id = new_id() if task_id is None else require_id(task_id)
        settings = self._settings
        body = encode_body(args, kwargs or {}, options or {}, settings.max_depth, settings.max_payload_bytes)
        queue_id = (self._queues.known(queue) if is_follow_up else self._queues.resolve(queue)).id
        if key is None and priority is None and delay is None and deadline is None:
            return NewInvocation(task_id, queue_id, actor, body)
        delay_us, due_at = _span_or_instant(delay, "_delay")
        deadline_us, deadline_at = _span_or_instant(deadline, "_deadline")
        return NewInvocation(
            task_id,
            queue_id,
            actor,
            body,
            _checked_priority(priority),
            _checked_key(key),
            delay_us,
            due_at,
            deadline_us,
            deadline_at,
        )

    def submit(self, batch: Sequence[NewInvocation]) -> list[Accepted]:
        """Write the drafts in one transaction and wake workers; one answer per draft, in order.

        Inside `Lattice.transaction` or `Lattice.joining` it follows the fate of that transaction.

        Raises:
            StoreUnavailable: the store did not answer in time. Trying again with the same ids or keys is safe.
        """
        if len(batch) > MAX_BATCH:
            raise InvalidInput(f"a batch of {len(batch)} is more than {MAX_BATCH}; submit it in parts")
        if not batch:
            return []
        if len(batch) == 1 and not batch[0].is_delayed and self._deferred.get() is None:
            self._announce({batch[0].queue_id})
        created = self._insert(batch)
        answers = [Accepted(one.id) for one in batch] if len(created) == len(batch) else self._answers(batch, created)
        deferral = self._deferred.get()
        if deferral is None:
            self._wake({one.queue_id for one in batch})
        if deferral is not None or self._telemetry.is_heard:
            counts = Counter(one.queue_id for one, answer in zip(batch, answers, strict=True) if answer.created)
            self._tell(counts) if deferral is None else deferral.counts.update(counts)
        return answers

    def tell_of(self, queue_id: int) -> None:
        """One more was inserted by somebody else: wake workers and tell, or keep that until the block ends."""
        deferral = self._deferred.get()
        if deferral is not None:
            deferral.counts.update((queue_id,))
            return
        self._wake({queue_id})
        self._tell({queue_id: 1})

    def wake(self, queue_ids: Collection[int]) -> None:
        """Wake workers of these queues."""
        self._wake(queue_ids)

    def deferring(self) -> AbstractContextManager[None]:
        """A block whose wake-ups and events are kept until it ends well, and dropped when it does not."""
        return self._defer(self._wake)

    def silent(self) -> AbstractContextManager[None]:
        """A block whose wake-ups are dropped: nobody here knows when its transaction commits."""
        return self._defer(lambda _queue_ids: None)

    @contextmanager
    def _defer(self, wake: Callable[[Collection[int]], None]) -> Iterator[None]:
        deferral = _Deferral()
        token = self._deferred.set(deferral)
        try:
            yield
        finally:
            self._deferred.reset(token)
        if deferral.counts:
            wake(set(deferral.counts))
            self._tell(deferral.counts)

    def _tell(self, counts: Mapping[int, int]) -> None:
        if self._telemetry.is_heard:
            for queue_id, count in counts.items():
                self._telemetry.emit("task.submitted", queue=self._queues.name_of(queue_id), count=count)

    def _insert(self, batch: Sequence[NewInvocation]) -> set[str]:
        give_up_at = clock.monotonic() + self._settings.store_timeout_ms / 1000
        pause_s = 0.05
        while True:
            try:
                with self._engine.session() as session:
                    return insert_invocations(session, batch)
            except StoreUnavailable:
                if self._engine.is_joined or clock.monotonic() + pause_s > give_up_at:
                    raise
            time.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(1.0, pause_s * 2)

    def _answers(self, batch: Sequence[NewInvocation], created: set[str]) -> list[Accepted]:
        wanting = [one for one in batch if one.key is not None and one.id not in created]
        holders: dict[tuple[int, str], tuple[str, str, bytes]] = {}
        while wanting:
            with self._engine.session() as session:
                holders |= find_holders(session, [(one.queue_id, one.key) for one in wanting if one.key])
            # A holder that was pruned since has left its key free: then this one takes it.
            wanting = [one for one in wanting if (one.queue_id, one.key) not in holders]
            if wanting:
                created |= self._insert(wanting)
                wanting = [one for one in wanting if one.id not in created]
        answers = []
        for one in batch:
            holder = holders.get((one.queue_id, one.key)) if one.key is not None and one.id not in created else None
            if holder is None or holder[0] == one.id:
                answers.append(Accepted(one.id))
            else:
                answers.append(
                    Accepted(holder[0], False, one.actor != holder[1] or not is_same_call(one.body, holder[2]))
                )
        return answers


@dataclass(frozen=True, slots=True)
class _Deferral:
    """How many invocations each queue got inside a block whose transaction has not committed yet."""

    counts: Counter[int] = field(default_factory=Counter)


def _span_or_instant(given: timedelta | datetime | None, name: str) -> tuple[int | None, int | None]:
    if given is None:
        return None, None
    if isinstance(given, timedelta):
        return clock.us_of(given, name), None
    if isinstance(given, datetime):
        return None, clock.instant_us(given, name)
    raise InvalidInput(f"{name}={given!r:.80} must be a timedelta or an aware datetime")


def _checked_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not 1 <= len(key) <= 255 or not key.isprintable():
        raise InvalidInput(f"_key={key!r:.80} must be a text of 1 to 255 printable characters")
    return key


def _checked_priority(priority: int | None) -> int:
    if priority is None:
        return 0
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise InvalidInput(f"_priority={priority!r:.80} must be a whole number of 32 bits; higher is more urgent")
    return priority

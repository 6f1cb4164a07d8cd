"""Accepting invocations: encode and check the arguments, write them, then wake a worker.

Commit, tell the caller, notify: in this order. An insert whose answer was lost is repeated with the same id, so it gives
exactly one invocation.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import uuid_utils

from lattice_tasks import clock
from lattice_tasks.errors import InvalidInput, NotEncodable, StoreUnavailable, TooDeep, TooLarge
from lattice_tasks.queues.record import Queues
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.submits import NewInvocation, find_holders, insert_invocations
from lattice_tasks.telemetry import Telemetry

__all__ = ["Accepted", "Body", "Submitter", "decode_body", "new_id"]

MAX_BATCH = 10_000
_PLAIN = frozenset({str, int, float, bool, type(None)})
_INT_RANGE = range(-(2**63), 2**64)
_NUL = b"\\u0000"


class Body(msgspec.Struct, omit_defaults=True):
    """What an invocation is called with, and Dramatiq's options of the message."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}


_encode = msgspec.json.Encoder().encode
_encode_in_order = msgspec.json.Encoder(order="deterministic").encode
decode_body = msgspec.json.Decoder(Body).decode


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to one submit: `created` is False when the key named an existing invocation, whose id this is."""

    id: str
    created: bool = True
    args_mismatch: bool = False


def new_id() -> str:
    """A new invocation id: a UUID of version 7, so ids made later sort later."""
    return str(uuid_utils.uuid7())


class Submitter:
    """Writes invocations for one namespace and wakes workers after the commit."""

    def __init__(
        self,
        engine: Engine,
        queues: Queues,
        settings: Settings,
        telemetry: Telemetry,
        wake: Callable[[Collection[int]], None],
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._settings = settings
        self._telemetry = telemetry
        self._wake = wake
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
        key: str | None = None,
        priority: int | None = None,
        delay: timedelta | datetime | None = None,
        deadline: timedelta | datetime | None = None,
    ) -> NewInvocation:
        """A checked invocation that is not written yet; its queue exists.

        Raises:
            InvalidInput: names the argument that is not acceptable.
            QueueClosed: the queue takes no new invocations.
        """
        body = self.encode(args, kwargs or {}, options or {})
        queue_id = self._queues.resolve(queue).id
        task_id = task_id or new_id()
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

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]) -> bytes:
        """The stored bytes of a call: JSON, of values that come back as they went in.

        Raises:
            NotEncodable, TooDeep, TooLarge: names the argument.
        """
        depth = self._settings.max_depth
        for position, value in enumerate(args):
            if type(value) not in _PLAIN or type(value) is float or type(value) is int:
                _check(value, f"args[{position}]", depth)
        for name, value in kwargs.items():
            _check(value, name, depth)
        try:
            body = _encode(Body(list(args), dict(kwargs), options))
        except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
            raise NotEncodable(f"{_culprit(args, kwargs)} cannot be written as JSON: {error}") from error
        if _NUL in body:
            for name, value in (*((f"args[{i}]", v) for i, v in enumerate(args)), *kwargs.items()):
                _refuse_nul(value, name)
        if len(body) > self._settings.max_payload_bytes:
            raise TooLarge(
                f"the arguments take {len(body)} bytes as JSON, the limit is {self._settings.max_payload_bytes}; "
                "pass a reference instead of the data"
            )
        return body

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
        created = self._insert(batch)
        answers = [Accepted(one.id) for one in batch] if len(created) == len(batch) else self._answers(batch, created)
        deferral = self._deferred.get()
        if deferral is None:
            self._wake({one.queue_id for one in batch})
        if deferral is not None or self._telemetry.is_heard:
            counts = Counter(one.queue_id for one, answer in zip(batch, answers, strict=True) if answer.created)
            self._tell(counts) if deferral is None else deferral.counts.update(counts)
        return answers

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
                answers.append(Accepted(holder[0], False, not _same_call(one, holder[1], holder[2])))
        return answers


@dataclass(frozen=True, slots=True)
class _Deferral:
    """How many invocations each queue got inside a block whose transaction has not committed yet."""

    counts: Counter[int] = field(default_factory=Counter)


def _same_call(one: NewInvocation, actor: str, body: bytes) -> bool:
    if one.actor != actor:
        return False
    try:
        return _call_of(one.body) == _call_of(body)
    except msgspec.MsgspecError:  # written by other code: not what we were given
        return False


def _call_of(body: bytes) -> bytes:
    """What the function is called with, as bytes that tell 1 from true and from 1.0 but not the order of keys."""
    call = decode_body(body)
    return _encode_in_order([call.args, call.kwargs])


def _check(value: Any, path: str, depth_left: int) -> None:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise NotEncodable(f"argument {path}={value} is no JSON number; pass a text or None")
        return
    if kind is int:
        if value not in _INT_RANGE:
            raise NotEncodable(f"argument {path} is an integer beyond 64 bits; pass it as a text")
        return
    if isinstance(value, (list, tuple, dict)):
        if depth_left == 0:
            raise TooDeep(f"argument {path[:80]} is nested deeper than the limit; flatten it or pass a reference")
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise NotEncodable(f"argument {path} has the key {key!r:.40}; JSON keys are texts")
                _check(inner, f"{path}.{key:.40}", depth_left - 1)
        else:
            for position, inner in enumerate(value):
                if type(inner) is not str:
                    _check(inner, f"{path}[{position}]", depth_left - 1)
        return
    if isinstance(value, (str, int, float)):
        return
    raise NotEncodable(
        f"argument {path} is a {kind.__name__}, which JSON cannot carry unchanged; pass texts, numbers, lists or dicts"
    )


def _culprit(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    for name, value in (*((f"args[{i}]", v) for i, v in enumerate(args)), *kwargs.items()):
        try:
            _encode(value)
        except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
            return f"argument {name}"
    return "an option"


def _refuse_nul(value: Any, path: str) -> None:
    if isinstance(value, str) and "\0" in value:
        raise NotEncodable(f"argument {path} holds a NUL character; strip it")
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_nul(key, f"{path} (a key)")
            _refuse_nul(inner, f"{path}.{key:.40}")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            _refuse_nul(inner, f"{path}[{position}]")


def _span_or_instant(given: timedelta | datetime | None, name: str) -> tuple[int | None, int | None]:
    if given is None:
        return None, None
    if isinstance(given, timedelta):
        return clock.us_of(given, name), None
    if isinstance(given, datetime):
        return None, clock.to_us(clock.aware(given, name))
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

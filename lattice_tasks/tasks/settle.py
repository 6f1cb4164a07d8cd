"""How an attempt ended, and the one transaction that makes it so.

An `Outcome` is decided by the middleware and kept by the pump until `settle` has committed it. Success without anything
attached takes the fast lane (`store/turns.py`); everything else comes through here, a batch to a transaction.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lattice_tasks import clock
from lattice_tasks.audit import record_evictions
from lattice_tasks.dead_letters.entry import REPLAY_FAILED, DeadLetter, Life
from lattice_tasks.dead_letters.parking import REFUSE, Parking, ShelfSpec, fail_replays, finish_replays, park
from lattice_tasks.store import settles as moves
from lattice_tasks.store.engine import Session
from lattice_tasks.store.settles import Facts, Taken
from lattice_tasks.store.submits import NewInvocation, insert_invocations
from lattice_tasks.tasks.claim import take_back
from lattice_tasks.tasks.invocation import Flag, State, step

__all__ = [
    "RESULT_DROPPED",
    "Ended",
    "Kind",
    "Outcome",
    "Settled",
    "mark_all_discarded",
    "mark_discarded",
    "park_held",
    "settle",
]

#: In the invocation's `reason`: it succeeded, and what it returned could not be kept.
RESULT_DROPPED = "result_dropped"

EmittedEvent = tuple[str, dict[str, Any]]


class Kind(enum.StrEnum):
    """What shall become of a leased invocation; each is an event of the state table."""

    SUCCEED = "succeed"
    RETRY = "retry"
    PARK = "park"
    EXPIRE = "expire"
    CANCEL = "cancel"
    RELEASE = "release"


@dataclass(slots=True)
class Outcome:
    """How one attempt ended.

    Attributes:
        result: JSON, of a success.
        delay_us: until the retry, or until a released one may be claimed again.
        reason: the tag of the dead letter.
        is_charged: whether the failure counts against `max_retries`.
        is_unknown: no actor of this name here; the grace runs from the first time.
        follow_ups: what hooks enqueued between the decision and the ack; inserted with the settlement.
        group: the group's counter to lower, and what to submit when it reaches zero.
    """

    kind: Kind
    result: bytes | None = None
    delay_us: int = 0
    reason: str = ""
    error: str | None = None
    traceback: str | None = None
    is_charged: bool = True
    is_unknown: bool = False
    follow_ups: list[NewInvocation] = field(default_factory=list)
    group: tuple[str, list[NewInvocation]] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it may take the fast lane."""
        return self.kind is Kind.SUCCEED and not self.follow_ups and self.group is None and self.error is None


@dataclass(frozen=True, slots=True)
class Ended:
    """One attempt to settle: the lease's token and how it ended."""

    seq: int
    batch: int
    task_id: str
    actor: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settlement brought: refused seqs, events to emit now that it has committed, queues to wake."""

    refused: list[int]
    events: list[EmittedEvent]
    woken: set[int]


@dataclass(slots=True)
class _Batch:
    session: Session
    worker: str
    version: str
    shelf_of: Callable[[int], tuple[str, ShelfSpec]]
    events: list[EmittedEvent] = field(default_factory=list)
    woken: set[int] = field(default_factory=set)
    evicted: dict[tuple[int, str], list[tuple[int, str]]] = field(default_factory=dict)


def settle(
    engine_session: Session,
    worker_id: int,
    worker: str,
    version: str,
    ended: Sequence[Ended],
    shelf_of: Callable[[int], tuple[str, ShelfSpec]],
) -> Settled:
    """Settle a batch in one transaction. What was fenced off changes nothing and is told as refused.

    Args:
        worker: who ran it, as dead letters show it.
        shelf_of: queue id → (queue name, its shelf).
    """
    with engine_session.transaction() as session:
        batch = _Batch(session, worker, version, shelf_of)
        taken = moves.take_leases(session, worker_id, [(one.seq, one.batch) for one in ended])
        held = sorted((one for one in ended if one.seq in taken), key=lambda one: one.seq)
        mine = [_as_cancelled(batch, one, taken[one.seq]) for one in held]
        special = [one for one in mine if _concerns_shelf(one, taken[one.seq])]
        facts = moves.facts_of(session, [one.seq for one in special]) if special else {}
        for one in mine:
            if one.seq not in facts:
                _MOVES[one.outcome.kind](batch, one, taken[one.seq])
        # Shelf by shelf, in the order of their queues, each head locked once: settlements cannot wait in a circle.
        for queue_id in sorted({taken[one.seq].queue_id for one in special}):
            ours = [one for one in special if taken[one.seq].queue_id == queue_id]
            replayed = [one for one in ours if taken[one.seq].flags & Flag.REPLAY]
            first = [one for one in ours if not taken[one.seq].flags & Flag.REPLAY]
            _end_replays(batch, queue_id, replayed, taken, facts)
            _park(batch, queue_id, first, taken, facts)
        _attach(batch, [one for one in mine if one.outcome.kind is not Kind.RELEASE])
        record_evictions(session, batch.evicted)  # last: whoever holds the head of the audit waits for nothing else
    return Settled([one.seq for one in ended if one.seq not in taken], batch.events, batch.woken)


def _as_cancelled(batch: _Batch, one: Ended, lease: Taken) -> Ended:
    """Somebody asked to cancel it while it ran: then it is not tried again, whatever it ended with short of success."""
    if not lease.flags & Flag.CANCEL or one.outcome.kind in (Kind.SUCCEED, Kind.EXPIRE):
        return one
    if lease.flags & Flag.REPLAY and one.outcome.kind in (Kind.PARK, Kind.RETRY):
        return one  # it failed before its worker knew, and has no second attempt anyway
    return replace(one, outcome=Outcome(Kind.CANCEL, error=moves.cancel_reason(batch.session, one.seq)))


def _concerns_shelf(one: Ended, lease: Taken) -> bool:
    if lease.flags & Flag.REPLAY:
        return one.outcome.kind is not Kind.RELEASE
    return one.outcome.kind is Kind.PARK


def _failures(one: Ended, lease: Taken) -> int:
    return lease.attempt + (1 if one.outcome.is_charged else 0)


def _succeed(batch: _Batch, one: Ended, lease: Taken) -> None:
    code = step(State.RUNNING, "succeed").code
    outcome = one.outcome
    reason = None if outcome.error is None else RESULT_DROPPED
    moves.rest(batch.session, one.seq, code, lease.attempt, outcome.error, None, outcome.result, None, reason)
    if outcome.error is not None:
        batch.events.append(("settle.degraded", {"task_id": one.task_id, "error": one.outcome.error}))


def _retry(batch: _Batch, one: Ended, lease: Taken) -> None:
    outcome, queue = one.outcome, batch.shelf_of(lease.queue_id)[0]
    attempt = _failures(one, lease)
    moves.place_scheduled(batch.session, lease, outcome.delay_us, attempt, lease.flags & Flag.REPLAY)
    moves.record_failure(batch.session, one.seq, attempt, outcome.error, outcome.traceback, outcome.is_unknown)
    batch.woken.add(lease.queue_id)
    fields = {"attempt": attempt, "delay_ms": outcome.delay_us // 1000, "error": outcome.error}
    batch.events.append(("task.retried", {"queue": queue, "actor": one.actor, "task_id": one.task_id, **fields}))


def _release(batch: _Batch, one: Ended, lease: Taken) -> None:
    kept = lease.flags & (Flag.REPLAY | Flag.SUSPECT)
    if one.outcome.delay_us:
        moves.place_scheduled(batch.session, lease, one.outcome.delay_us, lease.attempt, kept)
        moves.record_failure(batch.session, one.seq, lease.attempt, one.outcome.error, None, one.outcome.is_unknown)
    else:
        moves.place_ready(batch.session, lease, lease.attempt, kept)
    batch.woken.add(lease.queue_id)
    queue = batch.shelf_of(lease.queue_id)[0]
    why = one.outcome.reason or "handed back"
    batch.events.append(("task.released", {"queue": queue, "task_id": one.task_id, "why": why}))


def _expire(batch: _Batch, one: Ended, lease: Taken) -> None:
    code = step(State.RUNNING, "expire").code
    moves.rest(batch.session, one.seq, code, lease.attempt, one.outcome.error, None, None, None)
    queue = batch.shelf_of(lease.queue_id)[0]
    batch.events.append(("task.expired", {"queue": queue, "actor": one.actor, "task_id": one.task_id}))


def _cancel(batch: _Batch, one: Ended, lease: Taken) -> None:
    code = step(State.RUNNING, "cancel").code
    moves.rest(batch.session, one.seq, code, lease.attempt, one.outcome.error, None, None, None)
    queue = batch.shelf_of(lease.queue_id)[0]
    reason = one.outcome.error
    batch.events.append(("task.cancelled", {"queue": queue, "task_id": one.task_id, "reason": reason}))


_MOVES = {
    Kind.SUCCEED: _succeed,
    Kind.RETRY: _retry,
    Kind.RELEASE: _release,
    Kind.EXPIRE: _expire,
    Kind.CANCEL: _cancel,
}


def _end_replays(
    batch: _Batch, queue_id: int, ended: Sequence[Ended], taken: dict[int, Taken], facts: dict[int, Facts]
) -> None:
    """A replay was one attempt: success takes the dead letter away, a failure unpins it with the new error, a cancel as
    it was."""
    queue = batch.shelf_of(queue_id)[0]
    well = [one for one in ended if one.outcome.kind is Kind.SUCCEED]
    cancelled = [one for one in ended if one.outcome.kind is Kind.CANCEL]
    badly = [one for one in ended if one.outcome.kind not in (Kind.SUCCEED, Kind.CANCEL)]
    entry_ids = {one.seq: facts[one.seq].entry_id or 0 for one in ended}
    lives = {one.seq: _life(batch, one) for one in badly}
    finish_replays(batch.session, queue_id, [entry_ids[one.seq] for one in well])
    fail_replays(batch.session, queue_id, {entry_ids[seq]: life for seq, life in lives.items()})
    take_back(batch.session, queue_id, {one.seq: one.outcome.error or "cancelled" for one in cancelled})
    for one in cancelled:
        told = {"queue": queue, "task_id": one.task_id, "reason": one.outcome.error}
        batch.events.append(("task.cancelled", told))
    for one in well:
        _succeed(batch, one, taken[one.seq])
        fields = {"shelf": queue, "entry_id": entry_ids[one.seq], "task_id": one.task_id, "reason": "replayed"}
        batch.events.append(("dead_letter.removed", fields))
    for one in badly:
        life, code = lives[one.seq], step(State.RUNNING, "park").code
        attempt = taken[one.seq].attempt + 1
        moves.rest(
            batch.session, one.seq, code, attempt, life.error, life.traceback, None, entry_ids[one.seq], life.reason
        )
        batch.events.append(_parked_event(queue, one, life.reason, 1))


def _life(batch: _Batch, one: Ended) -> Life:
    outcome = one.outcome
    return Life(
        reason=outcome.reason or "unknown",
        error=outcome.error or outcome.kind.value,
        traceback=outcome.traceback or "",
        attempts=1,
        worker=batch.worker,
        version=batch.version,
        ended=REPLAY_FAILED,
    )


def _park(
    batch: _Batch, queue_id: int, ended: Sequence[Ended], taken: dict[int, Taken], facts: dict[int, Facts]
) -> None:
    queue, shelf = batch.shelf_of(queue_id)
    letters = [_letter(batch, queue, one, taken[one.seq], facts[one.seq]) for one in ended]
    # On a shelf that refuses, what is held already has the next places.
    is_stalled = shelf.on_full == REFUSE and moves.has_held(batch.session, queue_id)
    parking = Parking((None,) * len(letters), ()) if is_stalled else park(batch.session, shelf, letters)
    if shelf.on_full == REFUSE and not is_stalled and None in parking.entry_ids:
        batch.events.append(("queue.stalled", {"queue": queue}))
    for gone in parking.evicted:
        fields = {"shelf": queue, "entry_id": gone.entry_id, "task_id": gone.task_id, "reason": gone.reason}
        batch.events.append(("dead_letter.evicted", fields))
        batch.evicted.setdefault((queue_id, queue), []).append((gone.entry_id, gone.task_id))
    for one, letter, entry_id in zip(ended, letters, parking.entry_ids, strict=True):
        event = "hold" if entry_id is None else "park"
        code = step(State.RUNNING, event).code
        moves.rest(
            batch.session, one.seq, code, letter.attempts, letter.error, letter.traceback, None, entry_id, letter.reason
        )
        if entry_id is None:
            moves.hold(batch.session, queue_id, one.seq)
            batch.events.append(("task.held", {"queue": queue, "task_id": one.task_id}))
            continue
        fields = {"shelf": queue, "entry_id": entry_id, "task_id": one.task_id, "reason": letter.reason}
        batch.events.append(("dead_letter.enqueued", fields))
        batch.events.append(_parked_event(queue, one, letter.reason, letter.attempts))
    # After the parked ones: a park of more than the shelf takes evicts letters of its own.
    for gone in parking.evicted:
        mark_discarded(batch.session, queue_id, gone.seq, gone.entry_id, "evict")


def mark_discarded(session: Session, queue_id: int, seq: int, entry_id: int, event: str) -> None:
    """The dead letter is gone from the shelf (`event`: discard or evict): its invocation says so."""
    code = step(State.PARKED, event).code
    if seq:
        moves.rest_discarded(session, seq, code)
    else:  # an entry that could not be read: the invocation knows it
        moves.rest_unread(session, queue_id, entry_id, code)


def mark_all_discarded(session: Session, queue_id: int, letters: Sequence[DeadLetter]) -> None:
    """`mark_discarded` of letters of one shelf that were taken off it."""
    for letter in sorted(letters, key=lambda one: one.seq):
        mark_discarded(session, queue_id, letter.seq, letter.entry_id, "discard")


def park_held(session: Session, queue: str, shelf: ShelfSpec, limit: int) -> list[EmittedEvent]:
    """Put held invocations of a queue on its shelf as far as there is room now; the events to emit after the commit."""
    with session.transaction():
        held = moves.held_ones(session, shelf.queue_id, limit)
        letters = [
            DeadLetter(
                task_id=one.id,
                seq=one.seq,
                queue=queue,
                actor=one.actor,
                body=one.body,
                key=one.key,
                priority=one.priority,
                reason=one.reason,
                error=one.error or "",
                traceback=one.traceback or "",
                attempts=one.attempt,
                submitted_at=clock.from_us(one.submitted_at),
            )
            for one in held
        ]
        # Never evicting: what is held waits for room, it does not push out what waits longer.
        parking = park(session, ShelfSpec(shelf.queue_id, shelf.capacity, REFUSE), letters)
        events: list[EmittedEvent] = []
        for letter, entry_id in zip(letters, parking.entry_ids, strict=True):
            if entry_id is not None:
                moves.unhold(session, shelf.queue_id, letter.seq, step(State.HELD, "park").code, entry_id)
                fields = {"shelf": queue, "entry_id": entry_id, "task_id": letter.task_id, "reason": letter.reason}
                events.append(("dead_letter.enqueued", fields))
        if events and shelf.on_full == REFUSE and not moves.has_held(session, shelf.queue_id):
            events.append(("queue.unstalled", {"queue": queue}))
    return events


def _letter(batch: _Batch, queue: str, one: Ended, lease: Taken, facts: Facts) -> DeadLetter:
    return DeadLetter(
        task_id=one.task_id,
        seq=one.seq,
        queue=queue,
        actor=facts.actor,
        body=facts.body,
        key=facts.key,
        priority=facts.priority,
        reason=one.outcome.reason,
        error=one.outcome.error or "",
        traceback=one.outcome.traceback or "",
        attempts=_failures(one, lease),
        submitted_at=clock.from_us(facts.submitted_at),
        worker=batch.worker,
        version=batch.version,
    )


def _parked_event(queue: str, one: Ended, reason: str, attempts: int) -> EmittedEvent:
    fields = {"queue": queue, "actor": one.actor, "task_id": one.task_id, "reason": reason}
    return "task.parked", {**fields, "attempts": attempts, "error": one.outcome.error}


def _attach(batch: _Batch, ended: Sequence[Ended]) -> None:
    """Insert what hooks enqueued, so that a chain is neither cut nor doubled; count groups down."""
    following = [new for one in ended for new in one.outcome.follow_ups]
    groups = [one.outcome.group for one in ended if one.outcome.group is not None]
    for key, callbacks in sorted(groups, key=lambda group: group[0]):  # in order, so that nobody waits in a circle
        if moves.count_down(batch.session, key) == 0:
            following += callbacks
    if following:
        insert_invocations(batch.session, following)
        batch.woken |= {new.queue_id for new in following}

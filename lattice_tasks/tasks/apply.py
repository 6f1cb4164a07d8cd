"""Applying a plan: its letters are sent, oldest first, in parts of one transaction each, and their ends are learnt.

An item moves on in the transaction that pins its letter and requeues its invocation, and a part begins by proving that the
plan is still ours: so each item is replayed once, whoever dies when and however often it is begun again. How a replay has
ended is read from the invocation and the shelf, by whoever looks.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.plan import PAUSED, RUNNING, Definition
from lattice_tasks.dead_letters.replay import Answer
from lattice_tasks.errors import LatticeError, PlanTaken, StoreUnavailable
from lattice_tasks.store import plans as rows
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.plans import ItemRow, Out, Settled
from lattice_tasks.tasks.invocation import State
from lattice_tasks.tasks.pace import Meter, Pace, StopRule

__all__ = ["REST", "Applier", "How", "Part", "Progress", "Work", "collect"]

T = TypeVar("T")

#: The number of the last step, which is for all that the canary steps left.
REST = 99
_PART = 100
_BEAT_S = 0.5
_LOOK_S = 0.1
_PAUSE_S = 0.02
_LAST_LOOK_S = 10.0
_PATIENCE_S = 30.0


@dataclass(slots=True)
class Part:
    """What one transaction did: what becomes of its items, the letters it moved, queues that have work."""

    settled: list[Settled] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    woken: set[int] = field(default_factory=set)

    def skip(self, queue_id: int, answers: Sequence[Answer]) -> None:
        """These letters are not as they were planned."""
        self.settled += [Settled(queue_id, one.entry_id, rows.SKIPPED, one.detail) for one in answers]


class Work(Protocol):
    """What is done to letters."""

    def do(self, session: Session, items: Sequence[ItemRow]) -> Part:
        """A part, in its transaction."""

    def tell(self, part: Part) -> None:
        """After its commit."""


@dataclass(frozen=True, slots=True)
class How:
    """How a plan is applied.

    Attributes:
        rate: letters a second; None: as fast as it goes.
        concurrency: replays under way at once, at least 1.
        canary: sizes of the steps that go first and are awaited.
        stop_at: the share of failed replays beyond which it stops, 0 to 1.
    """

    rate: float | None
    concurrency: int
    canary: tuple[int, ...]
    stop_at: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a plan is; `rate` is what got through a second of late, `eta_s` None while nobody can say."""

    state: str
    total: int
    waiting: int
    replaying: int
    done: int
    failed_again: int
    skipped: int
    rate: float
    eta_s: float | None


def collect(session: Session, plan_id: int) -> tuple[list[Settled], int]:
    """Write down which replays of a plan have ended; those, and how many are under way still."""
    outs = rows.outs(session, plan_id)
    ended = [one for one in map(_end_of, outs) if one is not None]
    rows.settle(session, plan_id, ended)
    return ended, len(outs) - len(ended)


class Applier:
    """One run of one plan by its owner, up to the end, a stop or a pause.

    Args:
        stopping: set: leave it at the next boundary.
    """

    def __init__(
        self,
        engine: Engine,
        plan_id: int,
        owner: str,
        made: Definition,
        how: How,
        work: Work,
        on_progress: Callable[[Progress], None],
        stopping: threading.Event,
    ) -> None:
        self._engine = engine
        self._plan_id = plan_id
        self._owner = owner
        self._made = made
        self._how = how
        self._work = work
        self._on_progress = on_progress
        self._stopping = stopping
        self._pace, self._rule, self._meter = Pace(how.rate), StopRule(how.stop_at), Meter()
        self._beat_at = self._look_at = self._report_at = 0.0
        self._state = RUNNING
        self._counts: dict[int, int] = {}
        self._sent: int | None = None
        self._judged: tuple[int, int] | None = None
        self._singly = 0

    def run(self, stage: int) -> str | None:
        """Work from this step on; why it stopped by its own rule, None: it has come to its end, or was told to leave.

        Raises:
            PlanTaken: somebody else owns it now; what was sent is in order.
            StoreUnavailable: the store was away for too long; it may be applied again.
        """
        steps = [*enumerate(self._how.canary, 1), (REST, self._made_total())]
        for number, size in steps:
            if number < stage:
                continue
            self._try(partial(rows.set_stage, plan_id=self._plan_id, stage=number))
            why = self._step(number, size)
            if why is not None:
                self._await_ends(number)
                return why
            if self._stopping.is_set():
                return None
        return None

    def _made_total(self) -> int:
        return sum(self._made.by_queue.values())

    def _step(self, number: int, size: int) -> str | None:
        self._sent = None
        while not self._stopping.is_set():
            self._look(number)
            self._keep()
            self._report()
            waiting, out = self._counts.get(rows.PENDING, 0), self._counts.get(rows.OUT, 0)
            if number == REST and (why := self._rule.verdict()) is not None:
                return why
            left = min(size - (self._sent or 0), waiting)
            if left <= 0 and not out:
                return self._verdict(number)
            room = min(_PART, left, self._how.concurrency - out)
            due = self._pace.due(room) if room > 0 and self._state == RUNNING else 0
            if due > 0:
                self._pace.take(self._send(number, due))
            if due < _PART:
                self._stopping.wait(_PAUSE_S)
        return None

    def _verdict(self, number: int) -> str | None:
        """Of a canary step, once all of it has ended."""
        if number == REST:
            return None
        _, done, failed = self._try(lambda session: rows.sent_in(session, self._plan_id, number))
        return self._rule.of(failed, done + failed)

    def _send(self, number: int, limit: int) -> int:
        """Send up to so many; where one letter spoils its part, each by itself, and that one is skipped."""
        if self._singly:
            self._singly, limit = self._singly - 1, 1
        try:
            return self._try(lambda session: self._part(session, number, limit))
        except StoreUnavailable:
            raise
        except LatticeError as error:
            if limit > 1:
                self._singly = limit
                return 0
            why = str(error)
            return self._try(lambda session: self._skip(session, number, why))

    def _part(self, session: Session, number: int, limit: int) -> int:
        with session.transaction():
            if not self._may_go_on(session):
                return 0
            items = rows.next_items(session, self._plan_id, limit)
            part = self._work.do(session, items)
            rows.send(session, self._plan_id, number, part.settled)
        self._went(part.settled)
        self._work.tell(part)
        return len(items)

    def _skip(self, session: Session, number: int, why: str) -> int:
        with session.transaction():
            if not self._may_go_on(session):
                return 0
            items = rows.next_items(session, self._plan_id, 1)
            settled = [Settled(one.queue_id, one.entry_id, rows.SKIPPED, why) for one in items]
            rows.send(session, self._plan_id, number, settled)
        self._went(settled)
        return len(items)

    def _may_go_on(self, session: Session) -> bool:
        """The first statement of a part: it locks the plan. Otherwise `_keep` shall see at once why not."""
        may = rows.beat(session, self._plan_id, self._owner) == RUNNING
        self._beat_at = clock.monotonic() + _BEAT_S if may else 0.0
        return may

    def _went(self, settled: Sequence[Settled]) -> None:
        """A part was committed; when there was nothing to send, what was counted is wrong."""
        if settled:
            self._move(rows.PENDING, settled)
            self._sent = (self._sent or 0) + len(settled)
        else:
            self._counts = {}

    def _keep(self) -> None:
        """Beat when it is time, and hear what others want: a pause, or the plan itself."""
        if clock.monotonic() < self._beat_at:
            return
        state = self._try(lambda session: rows.beat(session, self._plan_id, self._owner))
        self._beat_at = clock.monotonic() + _BEAT_S
        if state is None:
            raise PlanTaken("somebody else applies this plan now; what was sent so far is in order")
        if state != self._state:
            self._pace.restart()
        self._state = state

    def _look(self, number: int) -> None:
        """See which replays have ended, when it is time; count anew what nobody knows for certain."""
        if self._sent is None or not self._counts:
            self._count(number)
        if clock.monotonic() < self._look_at:
            return
        if self._counts.get(rows.OUT, 0):
            ended, left = self._try(lambda session: collect(session, self._plan_id))
            self._move(rows.OUT, ended)
            self._judge()
            if self._counts.get(rows.OUT, 0) != left:  # who made a report has seen others end
                self._count(number)
        self._look_at = clock.monotonic() + _LOOK_S

    def _count(self, number: int) -> None:
        """Count anew; ends that others wrote down count for the rule, too."""
        self._counts = self._try(lambda session: rows.counts(session, self._plan_id))
        self._sent = self._try(lambda session: rows.sent_in(session, self._plan_id, number))[0]
        self._judge()

    def _judge(self) -> None:
        """Let the rule see what has ended since it saw the last."""
        done, failed = self._counts.get(rows.DONE, 0), self._counts.get(rows.FAILED, 0)
        if self._judged is not None:
            self._rule.add([True] * (done - self._judged[0]) + [False] * (failed - self._judged[1]))
        self._judged = (done, failed)

    def _await_ends(self, number: int) -> None:
        """It stops: what is under way may end, so that the numbers that are told are the last ones."""
        give_up_at = clock.monotonic() + _LAST_LOOK_S
        while self._counts.get(rows.OUT, 0) and clock.monotonic() < give_up_at and not self._stopping.is_set():
            self._look(number)
            self._keep()
            self._report()
            self._stopping.wait(_PAUSE_S)

    def _move(self, before: int, settled: Sequence[Settled]) -> None:
        for one in settled:
            self._counts[before] = self._counts.get(before, 0) - 1
            self._counts[one.state] = self._counts.get(one.state, 0) + 1

    def _report(self) -> None:
        """Tell how far it is, when it is time."""
        if clock.monotonic() < self._report_at:
            return
        self._report_at = clock.monotonic() + _BEAT_S
        of = self._counts.get
        waiting, out = of(rows.PENDING, 0), of(rows.OUT, 0)
        rate = self._meter.add(of(rows.DONE, 0) + of(rows.FAILED, 0) + of(rows.SKIPPED, 0))
        eta_s = (waiting + out) / rate if rate > 0 and self._state != PAUSED else None
        total = self._made_total()
        ends = (of(rows.DONE, 0), of(rows.FAILED, 0), of(rows.SKIPPED, 0))
        self._on_progress(Progress(self._state, total, waiting, out, *ends, rate, eta_s))

    def _try(self, act: Callable[[Session], T]) -> T:
        """One look or one part, again while the store is away: each is all or nothing. What its answer would have said is
        counted anew."""
        give_up_at = clock.monotonic() + _PATIENCE_S
        while True:
            try:
                with self._engine.session() as session:
                    return act(session)
            except StoreUnavailable:
                self._counts, self._sent = {}, None
                if clock.monotonic() > give_up_at or self._stopping.wait(0.5):
                    raise


_ENDS = {state.code: state for state in (State.CANCELLED, State.EXPIRED, State.DISCARDED)}


def _end_of(out: Out) -> Settled | None:
    """How a replay has ended, None: not yet.

    A letter that was parked anew had its replay fail, whatever has happened since. A row that is gone has been pruned,
    which no parked one ever is.
    """
    if out.invocation_state in (None, State.SUCCEEDED.code):
        return Settled(out.queue_id, out.entry_id, rows.DONE)
    if out.parked_at is not None and out.parked_at != out.planned_at:
        return Settled(out.queue_id, out.entry_id, rows.FAILED, out.error)
    if out.invocation_state == State.PARKED.code:
        return Settled(out.queue_id, out.entry_id, rows.FAILED, out.error)
    if out.invocation_state in _ENDS:
        return Settled(out.queue_id, out.entry_id, rows.FAILED, f"ended as {_ENDS[out.invocation_state]}")
    return None

"""`Plans`: bulk work on dead letters that is looked at before it is done: make, apply, pause, resume, report."""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters import plan as made
from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.dead_letters.plan import (
    DISCARD,
    FINISHED,
    LEASE_S,
    PAUSED,
    PLANNED,
    REPLAY,
    RUNNING,
    STOPPED,
    Definition,
    Plan,
    PlanItem,
    item_of,
    plan_of,
)
from lattice_tasks.errors import (
    Conflict,
    DeadLetterNotFound,
    InvalidInput,
    InvalidOperation,
    PlanNotFound,
    PlanOutdated,
    PlanTaken,
    StoreError,
)
from lattice_tasks.queues.record import Queues
from lattice_tasks.settings import Settings
from lattice_tasks.store import plans as rows
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.plans import PlanRow
from lattice_tasks.tasks.apply import REST, Applier, How, Progress, Work, collect
from lattice_tasks.tasks.freeze import digest_of, freeze, why_nothing
from lattice_tasks.tasks.plan_work import Discarding, Replaying
from lattice_tasks.tasks.replay import Replays

__all__ = ["CANARY", "CONCURRENCY", "STOP_AT", "Plans"]

#: Steps that go first and are awaited; replays under way at once; the share of failures at which a plan stops.
CANARY, CONCURRENCY, STOP_AT = (1, 10), 500, 0.2
_MOST_CONCURRENT, _MOST_STEPS = 10_000, 20
_PAGE = 5_000
_EVERY = 2**31


class Plans:
    """The plans of one namespace.

    Args:
        wake: called with ids of queues that have work again.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        queues: Queues,
        replays: Replays,
        wake: Callable[[Sequence[int]], object],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._queues = queues
        self._replays = replays
        self._namespace_id, self._telemetry = replays.namespace_id, replays.telemetry
        self._wake = wake

    def make(
        self,
        chosen: Filter | None = None,
        *,
        verb: str = REPLAY,
        queue: str | None = None,
        include_repeat: bool = False,
        to_queue: str | None = None,
        to_actor: str | None = None,
        reason: str | None = None,
    ) -> Plan:
        """Freeze which letters are meant, as they are now; nothing happens to them.

        Args:
            chosen: narrows; None: every letter.
            verb: `replay` or `discard`.
            queue: only its shelf.
            include_repeat: also letters whose replays failed `dlq_poison_replays` times or more.
            to_queue, to_actor: replay them there, or as that task, whatever the redirect rules say.
            reason: why an operator does it; kept with the plan, no part of its digest.

        Raises:
            InvalidInput: an unknown verb, or a discard with a target.
            QueueNotFound: no such queue.
            DeadLetterNotFound: it matches no letter; nothing is kept.
        """
        if verb not in made.VERBS:
            raise InvalidInput(f"verb {verb!r} is none of {', '.join(made.VERBS)}")
        if verb == DISCARD and (to_queue or to_actor):
            raise InvalidInput("what is discarded goes nowhere: a target belongs to a plan that replays")
        if to_queue is not None and self._queues.get(to_queue).name == queue:
            raise InvalidInput(f"queue {queue!r} cannot be redirected onto itself")
        shelves = [self._queues.get(queue)] if queue is not None else self._queues.list()
        below = _EVERY if include_repeat or verb == DISCARD else self._settings.dlq_poison_replays
        namespace_id, name = self._namespace_id(), f"p{uuid.uuid4().hex[:6]}"
        asked: dict[str, Any] = {
            "queue": queue,
            "includes_repeat": include_repeat,
            "to_queue": to_queue,
            "to_actor": to_actor,
        }
        with self._engine.session() as session, session.transaction():
            plan_id = rows.add(session, namespace_id, name, verb)
            found = freeze(session, plan_id, shelves, chosen or Filter(), below)
            if not found["by_queue"]:
                raise DeadLetterNotFound(why_nothing(session, shelves, chosen or Filter(), found))
            definition = Definition(filter=chosen or Filter(), reason=reason, **asked, **found)
            said = {**asked, "namespace": namespace_id, "verb": verb, "filter": msgspec.to_builtins(definition.filter)}
            digest, total = digest_of(session, plan_id, said)
            rows.write(session, plan_id, msgspec.json.encode(definition).decode(), digest, total)
        self._telemetry.emit("plan.made", plan=name, verb=verb, count=total, digest=digest)
        return self.get(name)

    def get(self, name: str) -> Plan:
        """The plan, and how far it is now.

        Raises:
            PlanNotFound: no plan of this name.
        """
        row = self._row(name)
        with self._engine.session() as session:
            if row.state != PLANNED and row.state != FINISHED:
                with session.transaction():
                    collect(session, row.id)
            return plan_of(row, rows.counts(session, row.id))

    def list(self, limit: int = 50) -> list[Plan]:
        """The newest plans first."""
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            found = rows.list_all(session, namespace_id, limit)
            return [plan_of(row, rows.counts(session, row.id)) for row in found]

    def items(self, name: str) -> Iterator[PlanItem]:
        """Every letter of the plan and what has become of it, by queue and entry id; read in pages.

        Raises:
            PlanNotFound: no plan of this name.
        """
        self.get(name)
        row, after = self._row(name), (0, 0)
        names = self._names()
        while True:
            with self._engine.session() as session:
                page = rows.page(session, row.id, after, _PAGE)
            yield from (item_of(name, one, names) for one in page)
            if len(page) < _PAGE:
                return
            after = (page[-1].queue_id, page[-1].entry_id)

    def changes(self, name: str) -> dict[str, int]:
        """What has become of letters that wait, but are not as they were planned: how many, by what."""
        row = self._row(name)
        with self._engine.session() as session:
            return {what: count for what, count, _, _ in rows.changed(session, row.id)}

    def check(self, name: str, *, skip_changed: bool = False, go_on: bool = False, digest: str | None = None) -> int:
        """How many letters `apply` with these would work on; it does nothing.

        Raises:
            PlanNotFound, PlanOutdated, Conflict: as `apply` would.
        """
        row = self._row(name)
        self._refuse(row, digest, go_on)
        with self._engine.session() as session:
            changed = rows.changed(session, row.id)
            waiting = rows.counts(session, row.id).get(rows.PENDING, 0)
        if not skip_changed:
            self._require_unchanged(row, changed)
        return waiting - sum(count for _, count, _, _ in changed)

    def apply(
        self,
        name: str,
        *,
        rate: float | None = None,
        concurrency: int = CONCURRENCY,
        canary: Sequence[int] = CANARY,
        stop_at: float = STOP_AT,
        skip_changed: bool = False,
        go_on: bool = False,
        override: bool = False,
        digest: str | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        stopping: threading.Event | None = None,
    ) -> Plan:
        """Do what was planned, oldest first, until it has ended, stops by its rule, or is told to leave.

        Args:
            rate: letters a second, kept within a tenth; None: as fast as it goes.
            concurrency: replays under way at once, 1 to 10,000.
            canary: sizes of steps that go first, each awaited to its end; empty: none.
            stop_at: stop when more than this share of replays fails, 0 to 1: of a canary step, of the last 50 after it.
            skip_changed: skip letters that have changed since the plan, instead of refusing it.
            go_on: begin again although it stopped by its rule, which then counts anew.
            override: the same, and the rule does not count any more.
            digest: refuse a plan with another one: what was approved is what is done.
            stopping: set it, in another thread or a signal handler, to leave the plan paused at the next boundary.

        Returns:
            The plan: `finished`, `stopped`, or `paused` when it was told to leave.

        Raises:
            PlanNotFound: no plan of this name.
            PlanOutdated: letters have changed, or another digest; nothing was done.
            PlanTaken: somebody else applies it.
            Conflict: it is finished, or stopped and `go_on` was not said.
            InvalidInput: a number out of bounds.
            StoreUnavailable: for too long; apply it again.
        """
        how = _how(rate, concurrency, canary, 1.0 if override else stop_at)
        if self._engine.is_joined:
            raise InvalidOperation("a plan is applied in many transactions; not within one of yours")
        row, stopping = self._row(name), stopping or threading.Event()
        self._refuse(row, digest, go_on or override)
        with self._engine.session() as session:
            if skip_changed:
                rows.skip_changed(session, row.id)
            changed = [] if skip_changed else rows.changed(session, row.id)
        self._require_unchanged(row, changed)
        owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        if not self._claim(row, owner, stopping):
            return self.get(name)
        try:
            why = self._run(row, owner, how, on_progress, stopping)
        except PlanTaken:
            raise
        except BaseException:
            with suppress(StoreError):  # else its lease does it
                self._leave(row, owner, PAUSED, "interrupted by an error")
            raise
        left = PAUSED if stopping.is_set() else FINISHED
        self._leave(row, owner, STOPPED if why else left, why or ("interrupted" if left == PAUSED else None))
        return self.get(name)

    def pause(self, name: str) -> Plan:
        """Let whoever applies it rest; what is under way ends.

        Raises:
            Conflict: it does not run.
        """
        return self._switch(name, RUNNING, PAUSED, "paused by an operator")

    def resume(self, name: str) -> Plan:
        """Let whoever applies it go on.

        Raises:
            Conflict: it is not paused, or nobody applies it any more.
        """
        plan = self.get(name)
        if plan.state == STOPPED:
            raise Conflict(
                f"plan {name} stopped: {plan.why}; nobody applies it, go on with `lattice-tasks dlq apply {name} --continue`"
            )
        if plan.state == PAUSED and plan.owner is None:
            raise Conflict(f"nobody applies plan {name} any more; go on with `lattice-tasks dlq apply {name}`")
        return self._switch(name, PAUSED, RUNNING, None)

    def _row(self, name: str) -> PlanRow:
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            row = rows.find(session, namespace_id, name)
        if row is None:
            raise PlanNotFound(f"no plan {name!r:.80}; see `lattice-tasks dlq plans`")
        return row

    def _names(self) -> dict[int, str]:
        return {record.id: record.name for record in self._queues.list()}

    def _switch(self, name: str, before: str, after: str, why: str | None) -> Plan:
        row = self._row(name)
        with self._engine.session() as session:
            if not rows.switch(session, row.id, before, after, why):
                raise Conflict(f"plan {name} is {self.get(name).state}, not {before}")
        self._telemetry.emit("plan.changed", plan=name, state=after, why=why)
        return self.get(name)

    def _refuse(self, row: PlanRow, digest: str | None, goes_on: bool) -> None:
        if digest is not None and digest != row.digest:
            raise PlanOutdated(f"plan {row.name} has the digest {row.digest}, not {digest:.80}; nothing was done")
        if row.state == FINISHED:
            raise Conflict(f"plan {row.name} is finished; see `lattice-tasks dlq report {row.name}`")
        if row.state == STOPPED and not goes_on:
            raise Conflict(
                f"plan {row.name} stopped: {row.why}; go on with `lattice-tasks dlq apply {row.name} --continue`, or "
                "with --override to stop no more"
            )

    def _require_unchanged(self, row: PlanRow, changed: Sequence[tuple[str, int, int, int]]) -> None:
        if not changed:
            return
        names = self._names()
        parts = [
            f"{count} {what} (such as {entry_id} of queue {names.get(queue_id, queue_id)})"
            for what, count, queue_id, entry_id in changed
        ]
        total = sum(count for _, count, _, _ in changed)
        raise PlanOutdated(
            f"plan {row.name} is out of date: {total} of its {row.total} letters have changed: {', '.join(parts)}; "
            "make a new plan, or say --skip-changed"
        )

    def _claim(self, row: PlanRow, owner: str, stopping: threading.Event) -> bool:
        """Become its owner; an owner before who shows no sign of life for a lease is taken for dead. False: told to leave."""
        give_up_at = clock.monotonic() + LEASE_S + 2
        while not stopping.is_set():
            with self._engine.session() as session:
                if rows.claim(session, row.id, owner, int(LEASE_S * 1_000_000)):
                    self._telemetry.emit("plan.changed", plan=row.name, state=RUNNING, why=None)
                    return True
            now = self._row(row.name)
            self._refuse(now, None, True)
            if (now.owner and now.owner != row.owner) or now.beat_at != row.beat_at or clock.monotonic() > give_up_at:
                raise PlanTaken(
                    f"plan {row.name} is being applied by {now.owner.rpartition(':')[0]}; "
                    f"watch it with `lattice-tasks dlq report {row.name}`, rest it with `dlq pause {row.name}`"
                )
            stopping.wait(0.2)
        return False

    def _run(
        self,
        row: PlanRow,
        owner: str,
        how: How,
        on_progress: Callable[[Progress], None],
        stopping: threading.Event,
    ) -> str | None:
        definition = msgspec.json.decode(row.definition, type=Definition)
        names = self._names()
        is_replay = row.verb == REPLAY
        work: Work = Discarding(self._replays, self._settings.dlq_restore_days > 0)
        if is_replay:
            work = Replaying(self._replays, definition, names, self._wake)
        # After a stop the step that failed is behind us.
        stage = row.stage + 1 if row.state == STOPPED and row.stage < REST else row.stage
        if not is_replay:
            how = How(how.rate, how.concurrency, (), 1.0)
        applier = Applier(self._engine, row.id, owner, definition, how, work, on_progress, stopping)
        return applier.run(stage)

    def _leave(self, row: PlanRow, owner: str, state: str, why: str | None) -> None:
        with self._engine.session() as session:
            if rows.release(session, row.id, owner, state, why):
                self._telemetry.emit("plan.changed", plan=row.name, state=state, why=why)


def _how(rate: float | None, concurrency: int, canary: Sequence[int], stop_at: float) -> How:
    if rate is not None and not 0 < rate <= 1_000_000:
        raise InvalidInput(f"rate={rate} must be more than 0 and at most 1,000,000 letters a second")
    if not 1 <= concurrency <= _MOST_CONCURRENT:
        raise InvalidInput(f"concurrency={concurrency} must be between 1 and {_MOST_CONCURRENT:,}")
    if len(canary) > _MOST_STEPS or any(size < 1 for size in canary):
        raise InvalidInput(f"canary={list(canary)} must be at most {_MOST_STEPS} whole numbers from 1, such as 1,10")
    if not 0 <= stop_at <= 1:
        raise InvalidInput(f"stop_at={stop_at} must be a share between 0 and 1")
    return How(rate, concurrency, tuple(canary), stop_at)

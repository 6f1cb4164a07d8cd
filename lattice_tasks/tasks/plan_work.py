"""What applying a plan does to a part of its letters: replay them, or discard them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from lattice_tasks import clock
from lattice_tasks.dead_letters.bin import DISCARDED
from lattice_tasks.dead_letters.plan import Definition
from lattice_tasks.dead_letters.replay import begin_replays, take_off, tell_discarded, tell_replaying
from lattice_tasks.store import plans as rows
from lattice_tasks.store.engine import Session
from lattice_tasks.store.plans import ItemRow, Settled
from lattice_tasks.tasks.apply import Part
from lattice_tasks.tasks.replay import Replays

__all__ = ["Discarding", "Replaying"]


class Replaying:
    """Pins letters and puts their invocations back to work, in the part's transaction.

    Args:
        names: of the queues, by id.
        wake: called after the commit with the ids of queues that have work.
    """

    def __init__(
        self,
        replays: Replays,
        made: Definition,
        names: Mapping[int, str],
        wake: Callable[[Sequence[int]], object],
    ) -> None:
        self._replays = replays
        self._made = made
        self._names = names
        self._wake = wake

    def do(self, session: Session, items: Sequence[ItemRow]) -> Part:
        """The part as it then is; of a letter that has changed since the plan, why it was skipped."""
        router = self._replays.redirects.router(session, self._made.to_queue, self._made.to_actor)
        by_queue, part = _by_queue(items), Part()
        self._replays.hold(session, {queue_id: self._names[queue_id] for queue_id in by_queue}, router)
        for queue_id, parked_at in by_queue.items():
            begun = begin_replays(session, queue_id, list(parked_at), parked_at)
            moved = self._replays.requeue_many(session, begun.letters, router)
            for one in begun.letters:
                to = moved.get(one.entry_id)
                part.settled.append(Settled(queue_id, one.entry_id, rows.OUT, to=to))
                part.woken.add(to[0] if to else queue_id)
            part.letters += begun.letters
            part.skip(queue_id, begun.answers)
        return part

    def tell(self, part: Part) -> None:
        """After the commit: events, and the wake-up."""
        for one in part.letters:
            tell_replaying(self._replays.telemetry, one.queue, one)
        if part.woken:
            self._wake(sorted(part.woken))


class Discarding:
    """Takes letters off their shelves, into the bin when it `keeps` them, and marks their invocations discarded."""

    def __init__(self, replays: Replays, keeps: bool) -> None:
        self._replays = replays
        self._keeps = DISCARDED if keeps else None

    def do(self, session: Session, items: Sequence[ItemRow]) -> Part:
        """The part as it then is; of a letter that has changed since the plan, why it was skipped."""
        part = Part()
        for queue_id, parked_at in _by_queue(items).items():
            taken = take_off(session, queue_id, list(parked_at), parked_at, self._keeps)
            self._replays.discarder(queue_id)(session, taken.letters)
            part.settled += [Settled(queue_id, one.entry_id, rows.DONE) for one in taken.letters]
            part.letters += taken.letters
            part.skip(queue_id, taken.answers)
        return part

    def tell(self, part: Part) -> None:
        """After the commit: events."""
        for one in part.letters:
            tell_discarded(self._replays.telemetry, one.queue, one)


def _by_queue(items: Sequence[ItemRow]) -> dict[int, dict[int, datetime]]:
    """When each letter was parked, by entry id, by queue id, in the order in which shelves are locked."""
    found: dict[int, dict[int, datetime]] = {}
    for one in sorted(items, key=lambda item: (item.queue_id, item.entry_id)):
        found.setdefault(one.queue_id, {})[one.entry_id] = clock.from_us(one.parked_at)
    return found

"""A worker without threads: the test claims and settles by hand, so it decides what happens when."""

from collections.abc import Sequence

from lattice_tasks import Lattice
from lattice_tasks.dead_letters.parking import REFUSE, ShelfSpec
from lattice_tasks.store import workers
from lattice_tasks.store.turns import Claimed, Turn, Want, promote, turn
from lattice_tasks.store.workers import WorkerRow
from lattice_tasks.tasks.settle import Ended, Kind, Outcome, Settled, settle


class Claimer:
    """One incarnation on one queue, on a connection of its own; each claim is a batch of its own."""

    def __init__(self, lattice: Lattice, queue: str = "q") -> None:
        self.queue = lattice.queues.ensure(queue)
        self.session = lattice.engine.open_session()
        row = WorkerRow(lattice.namespace_id, "host", 7, 8, '["q"]', "[]", "1")
        self.worker_id = workers.register(self.session, row)
        self.batch = 0
        self.shelf = ShelfSpec(self.queue.id, on_full=self.queue.dlq_on_full)

    def turn(
        self,
        succeeded: Sequence[tuple[int, int, bytes | None]] = (),
        limit: int = 0,
        floor: int = 0,
        watch: bool = True,
    ) -> Turn:
        self.batch += 1
        wants = [Want(self.queue.id, limit, floor, self.shelf.on_full == REFUSE)] if limit else []
        watched = [self.queue.id] if watch else []
        return turn(self.session, self.worker_id, self.batch, succeeded, wants, watched)

    def claim(self, limit: int = 1, floor: int = 0) -> list[Claimed]:
        return self.turn(limit=limit, floor=floor).claimed

    def claim_one(self) -> Claimed:
        (claimed,) = self.claim()
        return claimed

    def settle(
        self, *ended: tuple[Claimed, Outcome], batch: int | None = None, worker_id: int | None = None
    ) -> Settled:
        token = self.batch if batch is None else batch
        named = [Ended(one.seq, token, one.id, one.actor, outcome) for one, outcome in ended]
        me = self.worker_id if worker_id is None else worker_id
        return settle(self.session, me, "host:7", "1", named, lambda queue_id: (self.queue.name, self.shelf))

    def promote(self, limit: int = 100) -> list[int]:
        return promote(self.session, [self.queue.id], limit)

    def beat(self) -> int:
        """Move the counter; returns where it stands."""
        workers.beat(self.session, self.worker_id, [])
        return next(pulse[1] for pulse in workers.pulses(self.session) if pulse[0] == self.worker_id)

    def close(self) -> None:
        self.session.close()


def outcome(kind: Kind, **more: object) -> Outcome:
    """An outcome with what its kind needs."""
    needed = {Kind.PARK: {"reason": "unknown", "error": "no"}, Kind.RETRY: {"error": "no"}}
    return Outcome(kind, **{**needed.get(kind, {}), **more})  # type: ignore[arg-type]

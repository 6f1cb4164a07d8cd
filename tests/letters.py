"""Letters, and a shelf with the fakes of the rooms above it, that the dead-letter tests share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import DeadLetter, Life
from lattice_tasks.dead_letters.parking import Parking, ShelfSpec, park
from lattice_tasks.dead_letters.shelf import Shelf
from lattice_tasks.store.engine import Engine, Session, Statement
from lattice_tasks.telemetry import Telemetry, make_log

QUEUE_ID, QUEUE = 7, "gpu"

_CREATE = Statement("create table if not exists worked (verb text, seq bigint)")
_WORK = Statement("insert into worked (verb, seq) values (%s, %s)")
_WORKED = Statement("select seq from worked where verb = %s order by seq")


def letter(seq: int, **changes: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "reason": "unknown",
        "error": f"ValueError: no {seq}",
        "traceback": "Traceback …",
        "attempts": 5,
        "worker": "host:12 abc",
        "version": "0.1.0",
        "task_id": f"00000000-0000-0000-0000-{seq:012}",
        "seq": seq,
        "queue": QUEUE,
        "actor": "train",
        "body": b'{"args":[%d]}' % seq,
        "key": f"k{seq}",
        "priority": 5,
        "submitted_at": clock.from_us(1_700_000_000_000_000 + seq),
    }
    return DeadLetter(**values | changes)


def letters(seqs: Iterable[int]) -> list[DeadLetter]:
    return [letter(seq) for seq in seqs]


def life(error: str = "again", **changes: Any) -> Life:
    return Life(**{"reason": "unknown", "error": error, "attempts": 6, "ended": "replay failed"} | changes)


def parked(engine: Engine, some: Sequence[DeadLetter], capacity: int = 1_000, on_full: str = "evict") -> Parking:
    with engine.session() as session, session.transaction():
        return park(session, ShelfSpec(QUEUE_ID, capacity, on_full), some)


class Desk:
    """A shelf, and what it did: to the invocations, in its own transaction, and as events."""

    def __init__(self, engine: Engine, queue_id: int = QUEUE_ID) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.woken = 0
        self.at_work: Callable[[Sequence[DeadLetter]], object] = lambda _some: None
        self.telemetry = Telemetry(make_log("critical"))
        self.telemetry.subscribe(lambda name, fields: self.events.append((name, dict(fields))))
        self.shelf = Shelf(
            engine,
            queue_id,
            QUEUE,
            telemetry=self.telemetry,
            requeue=lambda session, one: self._work(session, "requeue", [one]),
            discard_invocations=lambda session, some: self._work(session, "discard", some),
            wake=self._wake,
        )
        self._engine = engine
        with engine.session() as session:
            session.execute(_CREATE)

    def worked(self, verb: str) -> list[int]:
        """The invocations that were requeued or discarded, by their seq, as committed."""
        with self._engine.session() as session:
            return [row[0] for row in session.fetch(_WORKED, (verb,))]

    def _work(self, session: Session, verb: str, some: Sequence[DeadLetter]) -> None:
        for one in some:
            session.execute(_WORK, (verb, one.seq))
        self.at_work(some)

    def _wake(self) -> None:
        self.woken += 1

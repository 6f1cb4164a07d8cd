"""Records that are applied, fail and are parked in a table, that the tests of counting share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lattice_tasks.dead_letters.tracking import Attempt, Failure, Tracker
from lattice_tasks.store.engine import Engine, Session, Statement

WHO = ("orders", "paris", "17.4", "key", "set")
SHELF = Statement("create table if not exists shelf (text text, attempts bigint)")
PARK = Statement("insert into shelf (text, attempts) values (%s, %s)")
_PARKED = Statement("select text, attempts from shelf order by 1, 2")
_COUNTS = Statement("select attempts from lattice_failure order by 1")


def no_room(_failure: Failure) -> None:
    raise LookupError("no room")


@dataclass
class Record:
    """Something that is applied: it fails with the error it has now, and is parked in a table."""

    error: BaseException | None = None
    identity: tuple[str | bytes, ...] = WHO
    scope: str = "orders"
    result: Any = "applied"
    applied: int = 0
    before_park: Callable[[Failure], None] = lambda _failure: None
    seen: list[Failure] = field(default_factory=list)

    def attempt(self) -> Attempt[Any, str]:
        return Attempt(self.scope, self.identity, self.apply, self.park)

    def apply(self) -> Any:
        self.applied += 1
        if self.error is not None:
            raise self.error
        return self.result

    def park(self, session: Session, failure: Failure) -> str:
        session.execute(PARK, (failure.text, failure.attempts))
        self.before_park(failure)
        self.seen.append(failure)
        return "row"


def fail(tracker: Tracker, record: Record, times: int) -> None:
    for _ in range(times):
        with pytest.raises(type(record.error)) as raised:
            tracker.track(record.attempt())
        assert raised.value is record.error


def parked(engine: Engine) -> list[tuple]:
    with engine.session() as session:
        return session.fetch(_PARKED)


def counts(engine: Engine) -> list[int]:
    with engine.session() as session:
        return [row[0] for row in session.fetch(_COUNTS)]

"""A worker that lives beats, whatever its chores meet; and what it looks after is looked after one by one."""

import time
from contextlib import suppress
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.errors import StoreUnavailable
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.store.session import Session, Statement
from lattice_tasks.store.workers import WorkerRow, register
from tests.working import change, heard, opened, rows, until, working


@pytest.fixture
def lattice(store_url: str) -> Any:
    with opened(store_url, lease_ms=1_000) as lattice:
        lattice.task(queue="q")(nothing)
        yield lattice


def nothing() -> None: ...


def beats(lattice: Lattice) -> int:
    return sum(beat for (beat,) in rows(lattice, "select beat from lattice_worker"))


def test_a_chore_that_fails_in_an_unknown_way_does_not_stop_the_heart(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: the duties of a worker must not be what takes it for dead."""
    events = heard(lattice)

    def run_due(_self: Maintenance, _session: Session) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(Maintenance, "run_due", run_due)
    with working(lattice):
        until(lambda: len(events.of("worker.failing")) >= 3)
        before = beats(lattice)
        until(lambda: beats(lattice) >= before + 2)

    assert events.of("worker.failing")[0]["error"] == "ZeroDivisionError: nobody thought of this"
    assert events.of("worker.declared_dead") == []


def dead_workers(lattice: Lattice, count: int) -> list[int]:
    """That never beat; one lease each."""
    with lattice.engine.session() as session:
        rows_of = [WorkerRow(lattice.namespace_id, "gone", n, 1, "[]", "[]", "1") for n in range(count)]
        dead = [register(session, row) for row in rows_of]
    for worker_id in dead:
        change(
            lattice,
            "insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at) "
            "select %s, seq, 1, queue_id, 0, 0, 0, 0 from lattice_invocation where id = %s",
            worker_id,
            lattice.submit("other", "nothing").id,
        )
    return dead


def test_a_worker_that_cannot_be_buried_keeps_nobody_else_from_it(lattice: Lattice) -> None:
    """One damaged row must not leave all other orphans leased to the dead for ever."""
    events = heard(lattice)
    damaged, sound = dead_workers(lattice, 2)
    # The first orphan waits as well, which cannot be; the second one is sound.
    change(lattice, "delete from lattice_ready where seq = (select seq from lattice_lease where worker_id = %s)", sound)

    with working(lattice):
        (lost,) = until(lambda: events.of("worker.lost"))
        failed = until(lambda: events.of("maintenance.failed"))

    assert (lost["worker"], lost["leases"]) == (sound, 1)
    assert failed[0]["chore"] == "rescue"
    assert f"worker {damaged}" in failed[0]["error"]


def test_one_frozen_within_a_transaction_holds_up_no_heartbeat_and_is_buried_in_the_end(postgres_url: str) -> None:
    """C09, C10: its locks would make its healthy observers stand still, for whoever comes anew; the server ends it."""
    with opened(postgres_url, lease_ms=1_000, store_timeout_ms=3_000) as lattice:
        lattice.task(queue="q")(nothing)
        events = heard(lattice)
        frozen, dead = dead_workers(lattice, 2)
        change(lattice, "delete from lattice_ready")
        holder = lattice.engine.open_session()
        with working(lattice), suppress(StoreUnavailable), holder.transaction():
            holder.fetch(Statement("select id from lattice_worker where id = %s for key share"), (frozen,))
            until(lambda: [one["worker"] for one in events.of("worker.lost")] == [dead])
            beaten_at, before = time.monotonic(), beats(lattice)
            until(lambda: beats(lattice) >= before + 4)
            assert time.monotonic() - beaten_at < 1.5
            until(lambda: [one["worker"] for one in events.of("worker.lost")] == [dead, frozen])
    assert events.of("worker.declared_dead") == events.of("maintenance.failed") == []

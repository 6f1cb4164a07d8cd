"""A worker that lives beats, whatever its chores meet; and what it looks after is looked after one by one."""

from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.store.session import Session
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


def test_a_worker_that_cannot_be_buried_keeps_nobody_else_from_it(lattice: Lattice) -> None:
    """One damaged row must not leave all other orphans leased to the dead for ever."""
    events = heard(lattice)
    jobs = [lattice.submit("other", "nothing") for _ in range(2)]
    with lattice.engine.session() as session:
        dead = [register(session, WorkerRow(lattice.namespace_id, "gone", n, 1, "[]", "[]", "1")) for n in (1, 2)]
    for worker_id, job in zip(dead, jobs, strict=True):
        change(
            lattice,
            "insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at) "
            "select %s, seq, 1, queue_id, 0, 0, 0, 0 from lattice_invocation where id = %s",
            worker_id,
            job.id,
        )
    # The first orphan waits as well, which cannot be; the second one is sound.
    change(
        lattice, "delete from lattice_ready where seq = (select seq from lattice_invocation where id = %s)", jobs[1].id
    )

    with working(lattice):
        (lost,) = until(lambda: events.of("worker.lost"))
        failed = until(lambda: events.of("maintenance.failed"))

    assert (lost["worker"], lost["leases"]) == (dead[1], 1)
    assert failed[0]["chore"] == "rescue"
    assert f"worker {dead[0]}" in failed[0]["error"]

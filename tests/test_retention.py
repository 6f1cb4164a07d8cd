"""Finished invocations are kept as long as their queue says and removed a page at a time; open and parked ones stay."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from lattice_tasks import Lattice, clock
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.store import counters, invocations
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.working import change, heard, opened, rows, stored

DAY_US = 86_400_000_000


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def finished(lattice: Lattice, count: int, queue: str = "q", ago_us: int = 0) -> None:
    """So many invocations that succeeded so long ago."""
    lattice.submit_calls(queue, "idle", [((n,), {}) for n in range(count)], {})
    change(lattice, "delete from lattice_ready")
    change(
        lattice,
        """update lattice_invocation set state = 1, finished_at = submitted_at - %s
           where state = 0 and queue_id = %s""",
        ago_us,
        lattice.queues.get(queue).id,
    )


def test_each_queue_keeps_as_long_as_it_says_and_others_a_week(lattice: Lattice) -> None:
    lattice.queues.add("short", retention_ms=3_600_000)
    lattice.queues.add("long", retention_ms=30 * 86_400_000)
    for queue in ("short", "long", "usual"):
        lattice.queues.ensure(queue)
        for days in (0, 2, 8, 31):
            finished(lattice, 1, queue, days * DAY_US)
    change(lattice, "update lattice_invocation set finished_at = finished_at - 1000")
    lattice.submit("newest", "idle")  # SQLite keeps the newest row for its number

    assert lattice.prune() == 3 + 1 + 2

    kept = rows(
        lattice,
        """select q.name, (i.submitted_at - i.finished_at) / 86400000000 from lattice_invocation i
           join lattice_queue q on q.id = i.queue_id where i.state = 1 order by 1, 2""",
    )
    assert kept == [("long", 0), ("long", 2), ("long", 8), ("short", 0), ("usual", 0), ("usual", 2)]


def test_a_large_store_is_pruned_in_pages_of_a_bounded_size(lattice: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    """C42"""
    finished(lattice, 5_000, ago_us=8 * DAY_US)
    keeper = lattice.submit("q", "idle")
    pages: list[int] = []
    original = invocations.prune

    def prune(session: Any, *args: Any) -> tuple[int, int]:
        gone, after = original(session, *args)
        pages.append(gone)
        assert not session.in_transaction
        return gone, after

    monkeypatch.setattr(invocations, "prune", prune)

    assert lattice.prune() == 5_000
    assert pages == [2_000, 2_000, 1_000]
    assert stored(lattice) == 1
    assert keeper.refresh().state == "waiting"


def test_what_is_open_parked_or_held_is_never_pruned(lattice: Lattice) -> None:
    """C42, T-06"""
    lattice.queues.add("q", retention_ms=0)
    jobs = [lattice.submit("q", "idle") for _ in range(4)]
    later = lattice.submit("q", "idle", delay=timedelta(hours=1))
    claimer = Claimer(lattice)
    claimed = claimer.claim(3)
    claimer.settle((claimed[0], outcome(Kind.PARK)), (claimed[1], outcome(Kind.PARK)))
    claimer.close()
    change(lattice, "update lattice_invocation set state = 3 where seq = %s", claimed[1].seq)
    change(lattice, "update lattice_invocation set finished_at = 1 where finished_at > 1")

    assert lattice.prune() == 0

    assert [job.refresh().state for job in (*jobs, later)] == ["parked", "held", "running", "waiting", "scheduled"]


def test_a_key_is_remembered_until_its_invocation_is_pruned(lattice: Lattice) -> None:
    """L-34"""
    first = lattice.submit("q", "idle", key="k")
    change(lattice, "delete from lattice_ready")
    change(lattice, "update lattice_invocation set state = 1, finished_at = submitted_at")
    assert lattice.prune() == 0
    assert lattice.submit("q", "idle", key="k").id == first.id

    change(lattice, "update lattice_invocation set finished_at = 1")
    last = lattice.submit("q", "idle")  # the newest row of the store is kept for its number
    assert lattice.prune() == 1
    again = lattice.submit("q", "idle", key="k")

    assert (again.created, again.id != first.id) == (True, True)
    assert last.refresh().state == "waiting"


def test_numbers_are_never_given_twice_also_when_all_is_pruned(lattice: Lattice) -> None:
    """The order of submits is that of the numbers."""
    finished(lattice, 10, ago_us=8 * DAY_US)
    (top,) = rows(lattice, "select max(seq) from lattice_invocation")[0]
    lattice.prune()

    lattice.submit("q", "idle")

    assert rows(lattice, "select seq from lattice_ready")[0][0] > top


def test_living_workers_prune_page_by_page_and_forget_expired_counters(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(lattice, 4_500, ago_us=8 * DAY_US)
    lattice.submit("q", "idle")
    events = heard(lattice)
    now = [clock.monotonic()]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    maintenance = Maintenance(lattice.settings, lattice.telemetry, lambda queue_ids: None)
    with lattice.engine.session() as session:
        counters.add(session, "old", 1, -1_000)
        counters.add(session, "young", 1, 60_000)
        maintenance.run_due(session)
        assert stored(lattice) == 4_501
        for _ in range(4):
            now[0] += 31
            maintenance.run_due(session)
        now[0] += 300
        maintenance.run_due(session)

    assert [event["count"] for event in events.of("maintenance.pruned")] == [2_000, 2_000, 500]
    assert stored(lattice) == 1
    assert rows(lattice, "select key from lattice_counter") == [("young",)]


def test_pruners_promoters_and_claimers_never_wait_in_a_circle(lattice: Lattice, store_url: str) -> None:
    """C42"""
    lattice.queues.add("q", retention_ms=0)
    lattice.submit_calls("q", "idle", [((n,), {}) for n in range(600)], {})
    lattice.submit_calls("q", "idle", [((n,), {}) for n in range(600)], {"_delay": timedelta(0)})
    stopping, errors, settled = threading.Event(), [], []

    def loop(work: Any) -> None:
        try:
            while not stopping.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    claimers = [Claimer(lattice) for _ in range(4)]

    def claim(claimer: Claimer) -> None:
        claimed = claimer.claim(20)
        kinds = [Kind.SUCCEED, Kind.RETRY, Kind.RELEASE]
        settled.extend(one.seq for one in claimed[::3])
        claimer.settle(*[(one, outcome(kinds[n % 3])) for n, one in enumerate(claimed)])

    threads = [threading.Thread(target=loop, args=(lambda one=one: claim(one),)) for one in claimers[:2]]
    threads += [threading.Thread(target=loop, args=(lambda one=one: one.promote(50),)) for one in claimers[2:]]
    threads += [threading.Thread(target=loop, args=(lattice.prune,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    stopping.wait(2.0)
    stopping.set()
    for thread in threads:
        thread.join(timeout=20)
    for claimer in claimers:
        claimer.close()

    assert errors == []
    assert len(settled) == len(set(settled)) > 0
    if store_url.startswith("postgresql"):
        with psycopg.connect(store_url) as connection:
            assert connection.execute(
                "select deadlocks from pg_stat_database where datname = current_database()"
            ).fetchone() == (0,)

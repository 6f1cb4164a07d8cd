"""Why a task that a worker has leased has not finished, on both engines."""

from collections.abc import Callable, Iterator

import pytest

from lattice_tasks import Lattice
from lattice_tasks.store import turns
from lattice_tasks.tasks.claim import rescue
from tests.claimers import Claimer
from tests.reasons import claimers, codes, facts, register, seen_ago
from tests.working import change, opened

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url, lease_ms=30_000, heartbeat_ms=1_000) as lattice:
        lattice.queues.add("q")
        yield lattice


@pytest.fixture
def claimer(lattice: Lattice) -> Iterator[Callable[[], Claimer]]:
    with claimers(lattice) as make:
        yield make


def test_a_lease_tells_its_worker_and_whether_it_may_only_be_looked_ahead(
    lattice: Lattice, claimer: Callable[[], Claimer]
) -> None:
    jobs = [lattice.submit("q", "train") for _ in range(9)]
    ours = claimer()
    ours.claim(8)
    assert codes(lattice, jobs[0]) == ["running"]

    ours.claim_one()

    change(lattice, "update lattice_lease set claimed_at = claimed_at + 5000000")  # the test may be slow
    assert codes(lattice, jobs[0]) == ["looked_ahead"]
    change(lattice, "update lattice_lease set claimed_at = claimed_at - 10000000")
    told = facts(lattice, jobs[0], "running")
    assert (told["worker"], told["host"], told["pid"], told["is_started"]) == (ours.worker_id, "host", 7, True)
    assert told["heartbeat_age_s"] >= 0


def test_a_cancel_that_was_not_seen_yet_is_told(lattice: Lattice, claimer: Callable[[], Claimer]) -> None:
    """C52"""
    job = lattice.submit("q", "train")
    claimer().claim_one()
    job.cancel("not needed")

    assert codes(lattice, job) == ["cancel_requested", "running"]
    assert facts(lattice, job, "cancel_requested")["reason"] == "not needed"


def test_a_silent_worker_is_told_and_when_its_tasks_are_rescued(
    lattice: Lattice, claimer: Callable[[], Claimer]
) -> None:
    job = lattice.submit("q", "train")
    ours = claimer()
    ours.claim_one()
    seen_ago(lattice, ours.worker_id, 10)
    assert codes(lattice, job) == ["worker_silent", "running"]
    assert facts(lattice, job, "worker_silent")["rescued_within_s"] is None

    other = register(lattice)
    assert 25 < facts(lattice, job, "worker_silent")["rescued_within_s"] <= 32
    change(lattice, "update lattice_worker set started_at = started_at - 60000000 where id = %s", other)
    assert 15 < facts(lattice, job, "worker_silent")["rescued_within_s"] <= 22


def test_suspects_and_those_who_wait_for_them_are_told(lattice: Lattice, claimer: Callable[[], Claimer]) -> None:
    jobs = [lattice.submit("q", "train") for _ in range(2)]
    dead = claimer()
    dead.claim(2)
    with lattice.engine.session() as session:
        rescue(session, dead.worker_id, None)
    assert codes(lattice, jobs[0]) == ["no_worker", "is_suspect"]

    third = lattice.submit("q", "train")
    ours = claimer()
    claimed = ours.claim(3)
    fourth = lattice.submit("q", "train")

    assert codes(lattice, jobs[0]) == codes(lattice, jobs[1]) == ["suspect_waits"]
    assert codes(lattice, third) == ["suspect_alone"]
    assert codes(lattice, fourth) == ["suspect_alone"]
    turns.mark_started(ours.session, ours.worker_id, claimed[0].seq, ours.batch)
    assert codes(lattice, jobs[0]) == ["running"]
    assert facts(lattice, fourth, "suspect_alone") == {"tasks": [jobs[0].id], "workers": [ours.worker_id]}

    ours.turn([(claimed[1].seq, ours.batch, None)])
    change(lattice, "update lattice_lease set claimed_at = claimed_at - 6000000")
    assert codes(lattice, third) == ["running"]
    assert codes(lattice, fourth) == ["next_in_line"]

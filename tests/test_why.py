"""Every reason why a task does not go on, each from the situation that it names, on both engines."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from dramatiq.errors import RateLimitExceeded

from lattice_tasks import Lattice
from lattice_tasks.errors import TaskNotFound
from lattice_tasks.store import workers
from tests.claimers import Claimer
from tests.reasons import claimers, codes, facts, reasons, register, seen_ago
from tests.working import Gate, change, opened, until, until_state, working

STRANGER = "0190b2a4-7c1e-7c3f-9d62-5f0d3a1b2c3d"
ROOM = Path(__file__).resolve().parents[1] / "lattice_tasks" / "why"

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


def test_every_code_of_the_room_is_produced_here() -> None:
    said = {code for path in ROOM.glob("*.py") for code in re.findall(r'Reason\(\s*"(\w+)"', path.read_text("utf-8"))}
    here = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))

    assert len(said) > 20
    assert {code for code in said if f'"{code}"' not in here} == set()


def test_what_nothing_keeps_is_next(lattice: Lattice) -> None:
    register(lattice)

    assert codes(lattice, lattice.submit("q", "train")) == ["next_in_line"]


def test_a_paused_queue_is_named_first_and_how_to_resume_it(lattice: Lattice) -> None:
    lattice.queues.add("my queue")
    job = lattice.submit("my queue", "train")
    lattice.queues.pause("my queue")

    paused, no_worker = reasons(lattice, job)

    assert (paused.code, no_worker.code) == ("queue_paused", "no_worker")
    assert paused.todo == "lattice-tasks queues resume 'my queue'"
    assert paused.facts["since"] == lattice.queues.get("my queue").updated_at


def test_who_could_take_it_and_why_they_do_not(lattice: Lattice) -> None:
    job = lattice.submit("q", "train")
    assert codes(lattice, job) == ["no_worker"]

    register(lattice, queues='["other"]')
    assert codes(lattice, job) == ["not_served"]

    ours = register(lattice)
    with lattice.engine.session() as session:
        workers.set_state(session, lattice.namespace_id, ours, "draining")
    assert facts(lattice, job, "draining") == {"queue": "q", "draining_workers": [ours]}

    ignorant = register(lattice, actors='["other"]')
    assert codes(lattice, job) == ["actor_unknown"]
    assert facts(lattice, job, "actor_unknown")["known"] == ["other"]

    seen_ago(lattice, ignorant, 10)
    assert facts(lattice, job, "workers_silent")["silent_workers"] == [ignorant]

    seen_ago(lattice, ignorant, 60)
    assert codes(lattice, job) == ["draining"]

    for worker_id in range(1, ignorant + 1):
        seen_ago(lattice, worker_id, 60)
    assert codes(lattice, job) == ["no_worker"]
    assert "was seen 60 s ago" in reasons(lattice, job)[0].text


def test_those_in_front_are_counted(lattice: Lattice, claimer: Callable[[], Claimer]) -> None:
    """First in, first claimed: what was submitted before comes before."""
    ours = claimer()
    jobs = [lattice.submit("q", "train") for _ in range(4)]

    assert ours.claim_one().id == jobs[0].id

    assert codes(lattice, jobs[1]) == ["next_in_line"]
    assert facts(lattice, jobs[3], "behind") == {"ahead": 2, "running": 1, "kind": "fifo"}
    assert [one.id for one in ours.claim(3)] == [job.id for job in jobs[1:]]


def test_busy_workers_are_told(lattice: Lattice) -> None:
    gate = Gate()

    @lattice.task(queue="q")
    def hold() -> None:
        gate.pass_through()

    with working(lattice, threads=1):
        running = hold.submit()
        gate.await_entered()
        waiting = hold.submit()

        until(lambda: facts(lattice, running, "running")["is_started"])
        until(lambda: codes(lattice, waiting) == ["busy"])
        gate.open()
        until_state(waiting, "succeeded")

    assert codes(lattice, waiting) == ["succeeded"]


def test_an_actor_that_the_worker_does_not_know_is_told_with_since_when(lattice: Lattice) -> None:
    @lattice.task(queue="q")
    def other() -> None:
        raise AssertionError

    with working(lattice):
        job = lattice.submit("q", "train")
        until_state(job, "scheduled")
        seen = until(lambda: (found := codes(lattice, job))[0] == "handed_back" and found)

        assert seen == ["handed_back", "actor_unknown"]
        assert facts(lattice, job, "actor_unknown")["since"] >= job.refresh().submitted_at
        assert (
            "in 60 s it will be parked" in reasons(lattice, job)[1].text or "in 59 s" in reasons(lattice, job)[1].text
        )


def test_a_delay_is_told_and_what_will_matter_then(lattice: Lattice) -> None:
    job = lattice.submit("q", "train", delay=timedelta(hours=1), deadline=timedelta(hours=2))

    assert codes(lattice, job) == ["delayed", "no_worker", "deadline"]
    assert 3_500 < facts(lattice, job, "delayed")["in_s"] <= 3_600
    assert 7_100 < facts(lattice, job, "deadline")["in_s"] <= 7_200


def test_what_is_due_waits_for_a_worker(lattice: Lattice) -> None:
    job = lattice.submit("q", "train", delay=timedelta(hours=1))
    change(lattice, "update lattice_scheduled set due_at = due_at - 3600000000")

    assert codes(lattice, job) == ["due", "no_worker"]


def test_a_back_off_is_told_with_its_attempt_and_error(lattice: Lattice) -> None:
    @lattice.task(queue="q", min_backoff=60_000)
    def fail() -> None:
        raise ValueError("no luck")

    with working(lattice):
        job, bounded = fail.submit(), fail.send_with_options(max_retries=2)
        until_state(job, "scheduled")
        until(lambda: codes(lattice, bounded.message_id)[0] == "backing_off")

        told = facts(lattice, job, "backing_off")
        assert (told["attempt"], told["most_attempts"], told["error"]) == (1, None, "ValueError: no luck")
        assert facts(lattice, bounded.message_id, "backing_off")["most_attempts"] == 3
        assert "after failed attempt 1 of 3: ValueError: no luck" in reasons(lattice, bounded.message_id)[0].text
        assert codes(lattice, job) == ["backing_off"]


def test_one_that_waits_for_a_rate_limit_was_handed_back(lattice: Lattice) -> None:
    @lattice.task(queue="q", min_backoff=60_000)
    def limited() -> None:
        raise RateLimitExceeded("later")

    with working(lattice):
        job = limited.submit()
        until_state(job, "scheduled")

        assert codes(lattice, job) == ["handed_back"]
        assert "RateLimitExceeded: later" in reasons(lattice, job)[0].text


def test_a_passed_deadline_lets_it_expire_at_its_claim(lattice: Lattice) -> None:
    @lattice.task(queue="q")
    def train() -> None:
        raise AssertionError

    register(lattice)
    job = train.submit(_deadline=timedelta(hours=1))
    assert codes(lattice, job) == ["next_in_line", "deadline"]
    change(lattice, "update lattice_invocation set deadline_at = submitted_at")

    assert codes(lattice, job) == ["deadline_passed"]
    with working(lattice):
        until_state(job, "expired")
    assert "its deadline passed" in reasons(lattice, job)[0].text
    assert codes(lattice, job) == ["expired"]


def test_a_parked_task_tells_where_its_letter_lies_and_a_replay_that_it_is_one(lattice: Lattice) -> None:
    @lattice.task(queue="q", max_retries=0)
    def fail() -> None:
        raise ValueError("no luck")

    with working(lattice):
        job = fail.submit()
        until_state(job, "parked")
    (parked,) = reasons(lattice, job)
    told = parked.facts

    lattice.dead_letters("q").replay(1)

    assert (parked.code, parked.todo) == ("parked", "lattice-tasks dlq replay 1 --queue q")
    assert (told["entry_id"], told["reason"], told["attempt"], told["is_pinned"]) == (1, "unknown", 1, False)
    assert codes(lattice, job) == ["no_worker", "replay"]
    assert facts(lattice, job, "replay") == {"entry_id": 1, "queue": "q"}


def test_a_parked_task_whose_letter_is_missing_says_so(lattice: Lattice) -> None:
    job = lattice.submit("q", "train")
    change(lattice, "delete from lattice_ready")
    change(lattice, "update lattice_invocation set state = 2, entry_id = 7, reason = 'unknown'")

    (reason,) = reasons(lattice, job)

    assert "its dead letter is missing" in reason.text
    assert reason.todo == "lattice-tasks db check"


def test_a_held_task_tells_what_the_shelf_waits_for(lattice: Lattice) -> None:
    gate = Gate()
    lattice.queues.add("orders", dlq_capacity=1)
    is_replayed = []

    @lattice.task(queue="orders", max_retries=0)
    def fail(name: str) -> None:
        if name == "first" and is_replayed:
            gate.pass_through()
        raise ValueError(name)

    with working(lattice, threads=2):
        until_state(fail.submit("first"), "parked")
        is_replayed.append(True)
        lattice.dead_letters("orders").replay(1)
        gate.await_entered()
        newcomer = fail.submit("newcomer")
        until_state(newcomer, "held")

        told = facts(lattice, newcomer, "held")
        gate.open()

    assert (told["parked"], told["capacity"], told["held"], told["reason"]) == (1, 1, 1, "unknown")


def test_how_it_ended_is_told(lattice: Lattice) -> None:
    cancelled, discarded = lattice.submit("q", "train"), lattice.submit("q", "train")
    cancelled.cancel("not needed")
    change(lattice, "delete from lattice_ready")
    change(lattice, "update lattice_invocation set state = 6, finished_at = submitted_at where id = %s", discarded.id)

    assert (codes(lattice, cancelled), codes(lattice, discarded)) == (["cancelled"], ["discarded"])
    assert facts(lattice, cancelled, "cancelled")["error"] == "not needed"
    assert "not needed" in reasons(lattice, cancelled)[0].text


def test_what_was_edited_points_to_what_goes_on(lattice: Lattice) -> None:
    edited, child = lattice.submit("q", "train"), lattice.submit("q", "train")
    change(lattice, "delete from lattice_ready where seq = (select min(seq) from lattice_ready)")
    change(lattice, "update lattice_invocation set state = 6, replaced_by = %s where id = %s", child.id, edited.id)

    (reason,) = reasons(lattice, edited)

    assert (reason.code, reason.facts["replaced_by"]) == ("discarded", child.id)
    assert reason.todo == f"lattice-tasks tasks why {child.id}"


def test_damage_is_told(lattice: Lattice, claimer: Callable[[], Claimer]) -> None:
    lost, orphan = lattice.submit("q", "train"), lattice.submit("q", "train")
    change(lattice, "delete from lattice_ready where seq = (select min(seq) from lattice_ready)")
    ours = claimer()
    ours.claim_one()
    change(lattice, "delete from lattice_worker")

    assert (codes(lattice, lost), codes(lattice, orphan)) == (["lost"], ["lease_lost"])


def test_an_unknown_task_is_not_found(lattice: Lattice, store_url: str) -> None:
    """I12: nor is another namespace's."""
    job = lattice.submit("q", "train")

    with opened(store_url, namespace="other") as other, pytest.raises(TaskNotFound):
        reasons(other, job)
    with pytest.raises(TaskNotFound):
        reasons(lattice, STRANGER)

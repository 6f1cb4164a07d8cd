"""Applying a plan: each letter once, oldest first, no faster and no further than was said."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.errors import Conflict, InvalidInput, PlanTaken
from tests.bulk import Runs, group_name, in_background, parked
from tests.working import Gate, heard, opened, rows, until, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_each_letter_is_replayed_once_oldest_first(lattice: Lattice) -> None:
    """I7: done, failed again, and nothing else."""
    runs = Runs(lattice)
    runs.is_ill = lambda number: number % 10 == 3
    parked(lattice, runs.task, "q", 130)
    plan, events = lattice.plans.make(), heard(lattice)

    with working(lattice, threads=1):
        ended = lattice.plans.apply(plan.id, canary=(1, 10), stop_at=0.5)

    assert (ended.state, ended.done, ended.failed_again, ended.skipped) == ("finished", 117, 13, 0)
    assert runs.ran == dict.fromkeys(range(130), 1)
    assert runs.order == sorted(runs.order)
    assert lattice.dead_letters("q").count() == 13
    failed = [item for item in lattice.plans.items(plan.id) if item.outcome == "failed_again"]
    assert {item.detail for item in failed} == {f"ValueError: ill {number}" for number in range(3, 130, 10)}
    assert [event["state"] for event in events.of("plan.changed")] == ["running", "finished"]
    with pytest.raises(Conflict, match="is finished"):
        lattice.plans.apply(plan.id)


def test_a_discard_plan_ends_its_letters(lattice: Lattice) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 5, groups=5)

    ended = lattice.plans.apply(lattice.plans.make(Filter(error_class=group_name(2)), verb="discard").id)

    assert (ended.state, ended.total, ended.done) == ("finished", 1, 1)
    assert [letter.entry_id for letter in lattice.dead_letters("q").list()] == [1, 3, 4, 5]
    assert rows(lattice, "select count(*) from lattice_invocation where state = 6") == [(1,)]


def test_a_canary_that_fails_stops_the_rest(lattice: Lattice) -> None:
    """It waits for the end of its step, says why, and goes on only when told to."""
    runs = Runs(lattice)
    runs.is_ill = lambda number: 1 <= number < 11 and number % 2 == 0
    parked(lattice, runs.task, "q", 40)
    plan = lattice.plans.make()

    with working(lattice):
        stopped = lattice.plans.apply(plan.id)
        assert (stopped.state, stopped.done, stopped.failed_again, stopped.waiting) == ("stopped", 6, 5, 29)
        assert stopped.why == "5 of the last 10 replays failed again, which is more than 20%"
        with pytest.raises(Conflict, match=r"--continue`, or with --override"):
            lattice.plans.apply(plan.id)
        assert sum(runs.ran.values()) == 11

        ended = lattice.plans.apply(plan.id, go_on=True)

    assert (ended.state, ended.done, ended.failed_again) == ("finished", 35, 5)
    assert set(runs.ran.values()) == {1}


def test_the_rest_is_watched_too(lattice: Lattice) -> None:
    runs = Runs(lattice)
    runs.is_ill = lambda number: number >= 50
    parked(lattice, runs.task, "q", 400)
    plan = lattice.plans.make()

    with working(lattice):
        stopped = lattice.plans.apply(plan.id, concurrency=10)
        assert stopped.state == "stopped"
        assert stopped.failed_again < 60
        assert stopped.replaying == 0
        ended = lattice.plans.apply(plan.id, override=True)

    assert (ended.state, ended.failed_again) == ("finished", 350)
    assert set(runs.ran.values()) == {1}


def test_no_more_replays_are_out_than_allowed(lattice: Lattice) -> None:
    runs = Runs(lattice)
    runs.gate = Gate()
    parked(lattice, runs.task, "q", 30)
    plan, seen = lattice.plans.make(), []

    with working(lattice, threads=16):
        ended = in_background(lambda: lattice.plans.apply(plan.id, concurrency=4, canary=(), on_progress=seen.append))
        runs.gate.await_entered(4)
        until(lambda: len(seen) >= 3, "progress")
        assert runs.gate.entered == 4
        runs.gate.open()
        assert ended().done == 30

    assert max(one.replaying for one in seen) == 4


def test_a_pause_by_another_rests_it_within_a_second(lattice: Lattice) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 60)
    plan = lattice.plans.make()
    with opened(lattice.settings.store_url) as other, working(lattice):
        ended = in_background(lambda: lattice.plans.apply(plan.id, rate=50, canary=()))
        until(lambda: sum(runs.ran.values()) >= 5, "a beginning")

        assert other.plans.pause(plan.id).state == "paused"
        paused = other.plans.get(plan.id)
        resting = until(lambda: (now := other.plans.get(plan.id)).replaying == 0 and now, "it to rest")
        assert paused.owner == resting.owner is not None
        assert resting.waiting == paused.waiting > 0
        with pytest.raises(PlanTaken, match="is being applied by"):
            other.plans.apply(plan.id)
        assert other.plans.resume(plan.id).state == "running"

        assert (ended().state, set(runs.ran.values())) == ("finished", {1})
    with pytest.raises(Conflict, match="is finished, not running"):
        lattice.plans.pause(plan.id)


def test_one_that_is_told_to_leave_goes_on_where_it_was(lattice: Lattice) -> None:
    runs, stopping = Runs(lattice), threading.Event()
    parked(lattice, runs.task, "q", 60)
    plan = lattice.plans.make()
    with working(lattice):
        ended = in_background(lambda: lattice.plans.apply(plan.id, rate=50, canary=(), stopping=stopping))
        until(lambda: sum(runs.ran.values()) >= 5, "a beginning")
        stopping.set()
        left = ended()
        assert (left.state, left.owner, left.why) == ("paused", None, "interrupted")
        with pytest.raises(Conflict, match="go on with `lattice-tasks dlq apply"):
            lattice.plans.resume(plan.id)

        assert lattice.plans.apply(plan.id, canary=()).state == "finished"

    assert runs.ran == dict.fromkeys(range(60), 1)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"rate": 0}, "rate=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"canary": (0,)}, "canary="),
        ({"stop_at": 1.5}, "stop_at=1.5"),
    ],
)
def test_bad_numbers_are_refused(lattice: Lattice, named: dict[str, Any], said: str) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 1)
    plan = lattice.plans.make()

    with pytest.raises(InvalidInput, match=said):
        lattice.plans.apply(plan.id, **named)
    assert lattice.plans.get(plan.id).state == "planned"

"""Bulk work on dead letters beside others who want the same letters, queue or plan."""

from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.errors import AlreadyHandled, Conflict, PlanTaken
from lattice_tasks.store import plans as plan_rows
from tests.bulk import Runs, in_background, parked
from tests.working import Gate, change, done, opened, states, until, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_letters_that_die_meanwhile_are_not_touched(lattice: Lattice) -> None:
    """C27: exactly the ten that were seen are tried once, the five that died while they ran are not."""
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 10)
    plan = lattice.plans.make()
    runs.is_ill, runs.gate = lambda number: True, Gate()

    with working(lattice, threads=16):
        ended = in_background(lambda: lattice.plans.apply(plan.id, canary=(), stop_at=1.0))
        runs.gate.await_entered(10)
        runs.task.submit_many([(100 + number,) for number in range(5)])
        runs.gate.open()
        plan = ended()
        done(lattice, "q")

    assert (plan.state, plan.total, plan.failed_again) == ("finished", 10, 10)
    assert runs.ran == dict.fromkeys((*range(10), *range(100, 105)), 1)
    assert lattice.dead_letters("q").count() == 15
    assert {letter.failed_replays for letter in lattice.dead_letters("q").list(after=10)} == {0}


def test_of_two_appliers_one_works_and_the_other_is_told(lattice: Lattice) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 80)
    plan = lattice.plans.make()
    with opened(lattice.settings.store_url) as other, working(lattice):
        calls = [
            in_background(lambda one=one: one.plans.apply(plan.id, rate=60, canary=())) for one in (lattice, other)
        ]
        ends = []
        for call in calls:
            try:
                ends.append(call().state)
            except (PlanTaken, Conflict) as error:
                ends.append(type(error).__name__)

    assert sorted(ends) == ["PlanTaken", "finished"]
    assert runs.ran == dict.fromkeys(range(80), 1)


def test_an_owner_who_lost_the_plan_sends_no_more(lattice: Lattice) -> None:
    """I8: it finds out in the transaction of its next part."""
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 50)
    plan = lattice.plans.make()
    with working(lattice):
        ended = in_background(lambda: lattice.plans.apply(plan.id, rate=40, canary=()))
        until(lambda: sum(runs.ran.values()) >= 3, "a beginning")
        change(lattice, "update lattice_plan set owner = 'thief:1:x'")
        with pytest.raises(PlanTaken, match="somebody else applies this plan now"):
            ended()
        done(lattice, "q")
        ran = sum(runs.ran.values())
        assert 3 <= ran < 50
        change(lattice, "update lattice_plan set beat_at = 0")

        assert lattice.plans.get(plan.id).state == "interrupted"
        assert lattice.plans.apply(plan.id, canary=()).state == "finished"

    assert runs.ran == dict.fromkeys(range(50), 1)


def test_operators_who_are_quicker_than_a_plan_win_and_it_says_so(lattice: Lattice, monkeypatch: Any) -> None:
    """C28: two operators on one entry, replay against discard: between the look at the plan and its part."""
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 3)
    plan = lattice.plans.make()
    shelf, looked = lattice.dead_letters("q"), plan_rows.changed

    def look_then_act(*given: Any) -> Any:
        found = looked(*given)
        shelf.discard(1)
        shelf.replay(2)
        return found

    monkeypatch.setattr(plan_rows, "changed", look_then_act)
    runs.gate = Gate()
    with working(lattice):
        ended = in_background(lambda: lattice.plans.apply(plan.id, canary=()))
        runs.gate.await_entered(2)
        with pytest.raises(AlreadyHandled, match="is being replayed"):
            shelf.discard(3)
        runs.gate.open()
        plan = ended()
        done(lattice, "q")

    assert (plan.done, plan.skipped) == (1, 2)
    details = {item.entry_id: item.detail and item.detail.partition(";")[0] for item in lattice.plans.items(plan.id)}
    assert details == {
        1: "no dead letter 1 on this shelf",
        2: "dead letter 2 is being replayed",
        3: None,
    }
    assert runs.ran == {1: 1, 2: 1}


def test_a_letter_that_failed_again_meanwhile_is_another_failure(lattice: Lattice, monkeypatch: Any) -> None:
    """Between the look at the plan and its part it was replayed and parked again: not the letter that was meant."""
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 2)
    plan, looked = lattice.plans.make(), plan_rows.changed

    def look_then_age(*given: Any) -> Any:
        found = looked(*given)
        change(lattice, "update lattice_plan_item set parked_at = parked_at - 1 where entry_id = 1")
        return found

    monkeypatch.setattr(plan_rows, "changed", look_then_age)
    with working(lattice):
        ended = lattice.plans.apply(plan.id, canary=())

    assert (ended.done, ended.skipped) == (1, 1)
    details = {item.entry_id: item.detail for item in lattice.plans.items(plan.id)}
    assert details == {1: "dead letter 1 was parked again since", 2: None}
    assert runs.ran == {1: 1}


def test_the_same_key_submitted_anew_while_it_is_replayed_is_the_replay(lattice: Lattice) -> None:
    """A key names one invocation, whatever becomes of it: the submit is told which."""
    runs = Runs(lattice)
    runs.is_ill = lambda number: True
    with working(lattice):
        first = runs.task.submit(1, _key="k")
        until(lambda: first.refresh().state == "parked", "parked")
        runs.is_ill, runs.gate = lambda number: False, Gate()
        plan = lattice.plans.make()
        ended = in_background(lambda: lattice.plans.apply(plan.id))
        runs.gate.await_entered(1)

        again = runs.task.submit(1, _key="k")
        runs.gate.open()

        assert (again.id, again.created) == (first.id, False)
        assert ended().done == 1
    assert (runs.ran, states([first])) == ({1: 2}, ["succeeded"])


def test_a_full_shelf_evicts_none_that_a_plan_replays(store_url: str) -> None:
    """C04: pinned letters stay, the oldest that waits goes, and the plan says what became of it."""
    with opened(store_url, shelf_capacity=3) as lattice:
        runs = Runs(lattice)
        parked(lattice, runs.task, "q", 3)
        plan = lattice.plans.make()
        runs.gate, runs.is_ill = Gate(), lambda number: number >= 100

        with working(lattice, threads=4):
            ended = in_background(lambda: lattice.plans.apply(plan.id, canary=(), concurrency=2))
            runs.gate.await_entered(2)
            new = runs.task.submit(100)
            runs.gate.await_entered(3)
            runs.gate.open()
            until(lambda: new.refresh().state in ("parked", "held"), "the newcomer")
            plan = ended()

        assert plan.total == plan.done + plan.skipped == 3
        assert all(item.detail for item in lattice.plans.items(plan.id) if item.outcome == "skipped")
        assert sum(runs.ran[number] for number in range(3)) == plan.done

"""What a plan of bulk work on dead letters freezes, and when it is out of date."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.errors import DeadLetterNotFound, InvalidInput, PlanNotFound, PlanOutdated
from tests.bulk import Runs, group_name, parked
from tests.working import opened, until, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_a_plan_says_what_it_means_and_changes_nothing(lattice: Lattice) -> None:
    runs, other = Runs(lattice), Runs(lattice, "other")
    parked(lattice, runs.task, "q", 6, groups=2)
    parked(lattice, other.task, "other", 2)

    plan = lattice.plans.make()
    narrowed = lattice.plans.make(Filter(error_class=group_name(1)), queue="q", verb="discard")

    assert (plan.state, plan.verb, plan.total, plan.waiting) == ("planned", "replay", 8, 8)
    assert plan.made.by_queue == {"q": 6, "other": 2}
    assert plan.made.by_actor == {"task_q": 6, "task_other": 2}
    assert plan.made.by_reason == {"unknown": 8}
    assert plan.made.last_ids == {"q": 6, "other": 2}
    assert sum(group.count for group in plan.made.groups) == 8
    assert [group.count for group in plan.made.groups] == [3, 3, 2]
    assert all(len(group.samples) == min(3, group.count) for group in plan.made.groups)
    assert (narrowed.total, narrowed.made.by_queue) == (3, {"q": 3})
    assert [one.id for one in lattice.plans.list()] == [narrowed.id, plan.id]
    assert lattice.dead_letters("q").count() == 6
    assert not any(letter.is_replaying for letter in lattice.dead_letters("q").list())
    with pytest.raises(PlanNotFound, match="no plan 'nope'"):
        lattice.plans.get("nope")


def test_the_digest_stands_for_the_letters(lattice: Lattice) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 4)

    first, same = lattice.plans.make(), lattice.plans.make()
    lattice.dead_letters("q").discard(2)
    less = lattice.plans.make()

    assert first.digest == same.digest != less.digest
    with pytest.raises(PlanOutdated, match="has the digest"):
        lattice.plans.apply(less.id, digest=first.digest)
    assert runs.ran == {}


def test_the_digest_stands_for_what_is_done_to_them(lattice: Lattice) -> None:
    """An approved replay is no approval of a discard, nor of a replay as another task, of the very same letters."""
    runs, other = Runs(lattice), Runs(lattice, "other")
    parked(lattice, runs.task, "q", 2)
    parked(lattice, other.task, "other", 1)

    made = [
        lattice.plans.make(queue="q"),
        lattice.plans.make(queue="q", verb="discard"),
        lattice.plans.make(queue="q", to_actor="task_other"),
        lattice.plans.make(queue="q", to_queue="other"),
        lattice.plans.make(Filter(actor="task_q")),
    ]

    assert [plan.total for plan in made] == [2] * 5
    assert len({plan.digest for plan in made}) == 5
    with pytest.raises(PlanOutdated, match="has the digest"):
        lattice.plans.apply(made[1].id, digest=made[0].digest)
    assert lattice.dead_letters("q").count() == 2


def test_letters_that_failed_again_and_again_are_left_out(store_url: str) -> None:
    """The poison guard: counted, and taken in only when asked for."""
    with opened(store_url, dlq_poison_replays=2) as lattice:
        runs = Runs(lattice)
        runs.is_ill = lambda number: number == 1
        parked(lattice, runs.task, "q", 2)
        with working(lattice):
            for expected in ((2, 0), (1, 0)):
                plan = lattice.plans.make()
                assert (plan.total, plan.made.poisoned) == expected
                lattice.plans.apply(plan.id, canary=(), stop_at=1.0)

        with pytest.raises(DeadLetterNotFound, match="1 left out: replayed in vain too often"):
            lattice.plans.make()
        included = lattice.plans.make(include_repeat=True)
        assert (included.total, included.made.poisoned) == (1, 0)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda lattice: lattice.dead_letters("q").discard(2), "1 discarded or evicted"),
        (lambda lattice: lattice.dead_letters("q").replay(2), "1 being replayed"),
        (lambda lattice: _fail_again(lattice), "1 parked again"),
    ],
)
def test_a_plan_out_of_date_is_refused(lattice: Lattice, act: Callable[[Lattice], Any], what: str) -> None:
    runs = Runs(lattice)
    parked(lattice, runs.task, "q", 3)
    runs.is_ill = lambda number: number == 1
    plan = lattice.plans.make()
    act(lattice)

    with pytest.raises(PlanOutdated, match=f"1 of its 3 letters have changed: {what} .such as 2 of queue q") as refused:
        lattice.plans.apply(plan.id)
    assert refused.value.exit_code == 4
    assert lattice.plans.get(plan.id).state == "planned"
    assert list(lattice.plans.changes(plan.id).values()) == [1]

    # Nobody works before the applier has looked, or a replay that is under way may have ended by then.
    with ThreadPoolExecutor(1) as pool:
        applying = pool.submit(lattice.plans.apply, plan.id, skip_changed=True, canary=())
        until(lambda: lattice.plans.get(plan.id).skipped)
        with working(lattice):
            ended = applying.result()

    assert (ended.state, ended.done, ended.skipped) == ("finished", 2, 1)
    (skipped,) = (item for item in lattice.plans.items(plan.id) if item.outcome == "skipped")
    assert (skipped.entry_id, skipped.detail) == (2, what[2:] + " since the plan")
    assert runs.ran[0] == runs.ran[2] == 1


def _fail_again(lattice: Lattice) -> None:
    with opened(lattice.settings.store_url) as other:

        @other.task(queue="q", max_retries=0, name="task_q")
        def run(number: int) -> None:
            raise ValueError(f"ill {number}")

        with working(other):
            assert lattice.dead_letters("q").replay(2, wait=15).state == "parked"


def test_bad_plans_are_refused(lattice: Lattice) -> None:
    Runs(lattice)

    for named in ({"verb": "burn"}, {"verb": "discard", "to_queue": "q"}, {"queue": "q", "to_queue": "q"}):
        with pytest.raises(InvalidInput):
            lattice.plans.make(**named)
    assert lattice.plans.list() == []

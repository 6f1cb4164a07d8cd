"""Redirects: dead letters of a queue or task that was renamed are replayed under the new name."""

from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.errors import Conflict, InvalidInput, QueueNotFound, RedirectNotFound
from tests.bulk import Runs, parked
from tests.working import done, heard, opened, rows, states, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_a_letter_is_replayed_in_the_queue_and_as_the_task_of_today(lattice: Lattice) -> None:
    """Same id and key; the message as it was; the record says what it was."""
    old, new = Runs(lattice, "old"), Runs(lattice, "new")
    old.is_ill = lambda number: True
    with working(lattice):
        job = old.task.submit(7, _key="k", _priority=3)
        done(lattice, "old")
        lattice.redirects.add(from_queue="old", to_queue="new")
        lattice.redirects.add(from_actor="task_old", to_actor="task_new", queue="old")
        events = heard(lattice)

        assert lattice.dead_letters("old").replay(1).task_id == job.id
        done(lattice, "new")

    now = job.refresh()
    assert (now.state, now.queue, now.actor, now.key, now.priority) == ("succeeded", "new", "task_new", "k", 3)
    assert (old.ran, new.ran) == ({7: 1}, {7: 1})
    assert lattice.dead_letters("old").count() == lattice.dead_letters("new").count() == 0
    (moved,) = events.of("dead_letter.redirected")
    assert (moved["shelf"], moved["actor"], moved["to_queue"], moved["to_actor"]) == (
        "old", "task_old", "new", "task_new",
    )  # fmt: skip
    ((was,),) = rows(lattice, "select redirected_from from lattice_invocation")
    assert was == '{"queue":"old","actor":"task_old"}'


def test_one_that_fails_there_lies_on_the_shelf_there(lattice: Lattice) -> None:
    """Nothing is lost on the way: it has moved, and says from where; its message is untouched."""
    old, new = Runs(lattice, "old"), Runs(lattice, "new")
    new.is_ill = lambda number: True
    parked(lattice, old.task, "old", 3)
    body = lattice.dead_letters("old").get(2).body
    plan = lattice.plans.make(to_queue="new", to_actor="task_new")

    with working(lattice):
        ended = lattice.plans.apply(plan.id, canary=(), stop_at=1.0)

    assert (ended.failed_again, lattice.dead_letters("old").count()) == (3, 0)
    letter = lattice.dead_letters("new").get(2)
    assert (letter.queue, letter.actor, letter.body, letter.failed_replays) == ("new", "task_new", body, 1)
    assert [(was.queue, was.actor) for was in letter.redirects] == [("old", "task_old")]
    assert [item.moved_to for item in lattice.plans.items(plan.id)] == [("new", 1), ("new", 2), ("new", 3)]
    assert lattice.job(letter.task_id).refresh().entry_id == letter.entry_id
    assert lattice.plans.make(queue="new").total == 3


def test_only_the_actor_may_change(lattice: Lattice) -> None:
    first, second = Runs(lattice, "first"), Runs(lattice, "second")
    first.is_ill = second.is_ill = lambda number: True
    parked(lattice, first.task, "first", 1)

    lattice.redirects.add(from_actor="task_first", to_actor="task_second")
    with working(lattice):
        lattice.dead_letters("first").replay(1, wait=15)

    letter = lattice.dead_letters("first").get(1)
    assert (letter.actor, letter.failed_replays, second.ran) == ("task_second", 1, {0: 1})
    assert [one.entry_id for one in lattice.dead_letters("first").list(actor="task_second")] == [1]


def test_what_cannot_go_there_stays_and_says_why(lattice: Lattice) -> None:
    """A key that names another task there is not taken away."""
    old, new = Runs(lattice, "old"), Runs(lattice, "new")
    old.is_ill = new.is_ill = lambda number: True
    with working(lattice):
        jobs = [old.task.submit(number, _key=f"k{number}") for number in range(2)]
        taken = new.task.submit(5, _key="k0")
        done(lattice, "old", "new")

        plan = lattice.plans.make(queue="old", to_queue="new")
        ended = lattice.plans.apply(plan.id, canary=(), stop_at=1.0)

    assert (ended.skipped, ended.failed_again) == (1, 1)
    (skipped,) = (item for item in lattice.plans.items(plan.id) if item.outcome == "skipped")
    assert "another task has its key 'k0' there" in skipped.detail
    assert states([*jobs, taken]) == ["parked", "parked", "parked"]
    assert [letter.is_replaying for letter in lattice.dead_letters("old").list()] == [False]


def test_a_full_shelf_evicts_nobody_for_one_that_moves(lattice: Lattice) -> None:
    old = Runs(lattice, "old")
    parked(lattice, old.task, "old", 2)
    lattice.queues.add("small", dlq_capacity=1)
    lattice.redirects.add(from_queue="old", to_queue="small")

    assert lattice.dead_letters("old").replay(1).entry_id == 1
    with pytest.raises(Conflict, match="its shelf is full"):
        lattice.dead_letters("old").replay(2)

    assert lattice.dead_letters("small").count() == 1
    assert [letter.is_replaying for letter in lattice.dead_letters("old").list()] == [False]


def test_rules_are_followed_to_their_end_and_never_round(lattice: Lattice) -> None:
    """C25."""
    for name in ("a", "b", "c"):
        Runs(lattice, name)
    lattice.redirects.add(from_queue="a", to_queue="b")
    second = lattice.redirects.add(from_queue="b", to_queue="c")

    with lattice.engine.session() as session:
        assert lattice.redirects.router(session).destination("a", "x") == ("c", "x")
    with pytest.raises(Conflict, match=r"in a circle: a → b → c → a"):
        lattice.redirects.add(from_queue="c", to_queue="a")
    assert len(lattice.redirects.list()) == 2
    lattice.redirects.add(from_actor="x", to_actor="y")
    with pytest.raises(Conflict, match="in a circle"):
        lattice.redirects.add(from_actor="y", to_actor="x", queue="a")
    lattice.redirects.remove(second.id)
    with pytest.raises(RedirectNotFound):
        lattice.redirects.remove(second.id)


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"from_queue": "a", "to_queue": "a"}, InvalidInput),
        ({"from_queue": "a"}, InvalidInput),
        ({"from_queue": "a", "to_queue": "b", "from_actor": "x", "to_actor": "y"}, InvalidInput),
        ({"from_queue": "a", "to_queue": "b", "queue": "a"}, InvalidInput),
        ({"from_queue": "a", "to_queue": "nope"}, QueueNotFound),
        ({}, InvalidInput),
    ],
)
def test_bad_rules_are_refused(lattice: Lattice, named: dict[str, Any], error: type[Exception]) -> None:
    for name in ("a", "b"):
        lattice.queues.add(name)

    with pytest.raises(error):
        lattice.redirects.add(**named)
    assert lattice.redirects.list() == []

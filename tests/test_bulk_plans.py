"""Bulk work on dead letters: what a plan freezes, and that applying it does just that, once."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.dead_letters.plan import Plan
from lattice_tasks.errors import AlreadyHandled, Conflict, InvalidInput, PlanNotFound, PlanOutdated, PlanTaken
from lattice_tasks.store import plans as plan_rows
from tests.bulk import group_name, parked
from tests.working import Gate, change, done, heard, opened, rows, states, until, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


class Runs:
    """A task that says which numbers ran, how often, and fails for those that are ill."""

    def __init__(self, lattice: Lattice, queue: str = "q") -> None:
        self.ran: Counter[int] = Counter()
        self.order: list[int] = []
        self.is_ill: Callable[[int], bool] = lambda number: False
        self.gate: Gate | None = None
        self._lock = threading.Lock()

        @lattice.task(queue=queue, max_retries=0, name=f"task_{queue}")
        def run(number: int) -> int:
            with self._lock:
                self.ran[number] += 1
                self.order.append(number)
            if self.gate is not None:
                self.gate.pass_through()
            if self.is_ill(number):
                raise ValueError(f"ill {number}")
            return number

        self.task = run
        lattice.queues.add(queue)


def outcomes(lattice: Lattice, plan: Plan) -> Counter[str]:
    return Counter(item.outcome for item in lattice.plans.items(plan.id))


def in_background(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin the call in a thread; the answer waits for its end, and raises what it raised."""
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append((call(), None))
        except BaseException as error:
            answer.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def ended() -> Any:
        thread.join(30)
        assert not thread.is_alive(), "it did not end"
        value, error = answer[0]
        if error is not None:
            raise error
        return value

    return ended


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

        guarded, included = lattice.plans.make(), lattice.plans.make(include_repeat=True)
        assert (guarded.total, guarded.made.poisoned) == (0, 1)
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

    with working(lattice):
        ended = lattice.plans.apply(plan.id, skip_changed=True, canary=())

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
    details = {item.entry_id: item.detail for item in lattice.plans.items(plan.id)}
    assert details == {
        1: "no dead letter 1 on this shelf",
        2: "dead letter 2 is being replayed",
        3: None,
    }
    assert runs.ran == {1: 1, 2: 1}


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


def test_bad_plans_are_refused(lattice: Lattice) -> None:
    Runs(lattice)

    for named in ({"verb": "burn"}, {"verb": "discard", "to_queue": "q"}, {"queue": "q", "to_queue": "q"}):
        with pytest.raises(InvalidInput):
            lattice.plans.make(**named)
    assert lattice.plans.list() == []

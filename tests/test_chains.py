"""What follows a task - pipelines, groups, callbacks - is committed with its settlement: never cut, never doubled."""

from collections.abc import Iterator
from typing import Any

import pytest
from dramatiq import group, pipeline

from lattice_tasks import Lattice
from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.store.engine import Session
from lattice_tasks.tasks import settle as settle_room
from tests.working import Gate, done, heard, opened, states, stored, until, until_state, working

pytestmark = pytest.mark.recycled

SOON = {"min_backoff": 1, "max_backoff": 2}


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


class Sums:
    """Two tasks on two queues, and what they did."""

    def __init__(self, lattice: Lattice) -> None:
        self.ran: list[Any] = []

        @lattice.task(queue="first")
        def add(left: int, right: int) -> int:
            self.ran.append(("add", left, right))
            return left + right

        @lattice.task(queue="second")
        def note(*args: Any) -> Any:
            self.ran.append(("note", *args))
            return list(args)

        self.add, self.note = add, note
        self.lattice = lattice

    def done(self) -> None:
        done(self.lattice, "first", "second")
        done(self.lattice, "first", "second")


@pytest.fixture
def sums(lattice: Lattice) -> Sums:
    return Sums(lattice)


def test_a_pipeline_runs_to_its_end_across_queues(lattice: Lattice, sums: Sums) -> None:
    pipe = pipeline(
        [sums.add.message(1, 2), sums.add.message(3), sums.note.message("sum")], broker=lattice.broker
    ).run()
    with working(lattice):
        assert pipe.get_result(block=True, timeout=10_000) == ["sum", 6]
        assert list(pipe.get_results(block=True, timeout=10_000)) == [3, 6, ["sum", 6]]
    assert sums.ran == [("add", 1, 2), ("add", 3, 3), ("note", "sum", 6)]
    assert stored(lattice) == 3


def test_a_step_of_a_pipeline_may_wait_and_may_ignore_the_result_before(lattice: Lattice, sums: Sums) -> None:
    step = sums.note.message_with_options(args=("alone",), pipe_ignore=True, delay=50)
    first = sums.add.message(1, 2)
    pipeline([first, step], broker=lattice.broker).run()
    events = heard(lattice)
    with working(lattice):
        until_state(lattice.job(first.message_id), "succeeded")
        until(lambda: len(sums.ran) == 2)
        done(lattice, "second")
    assert sums.ran[-1] == ("note", "alone")
    assert [event["queue"] for event in events.of("task.succeeded")] == ["first", "second"]


def test_a_failing_step_ends_the_pipeline_and_its_replay_goes_on(lattice: Lattice, sums: Sums) -> None:
    broken = [True]

    @lattice.task(queue="first", max_retries=0)
    def fragile(number: int) -> int:
        if broken[0]:
            raise ValueError("no")
        return number

    last = sums.note.message()
    first = fragile.message(7)
    pipeline([first, last], broker=lattice.broker).run()
    with working(lattice):
        entry_id = until_state(lattice.job(first.message_id), "parked").entry_id
        assert stored(lattice) == 1
        broken[0] = False
        assert lattice.dead_letters("first").replay(entry_id, wait=10).state == "succeeded"
        assert result_of(lattice, last) == [7]


def test_callbacks_are_told_of_success_and_of_each_failure(lattice: Lattice) -> None:
    told: list[Any] = []

    @lattice.task(queue="bells")
    def succeeded(message: Any, result: Any) -> None:
        told.append(("succeeded", message["args"], result))

    @lattice.task(queue="bells")
    def failed(message: Any, error: Any) -> None:
        told.append(("failed", message["args"], error))

    @lattice.task(max_retries=1, on_success="succeeded", on_failure="failed", **SOON)
    def invert(number: int) -> float:
        return 1 / number

    invert.submit(2)
    job = invert.submit(0)
    invert.send_with_options(args=(4,), on_success=failed)
    with working(lattice):
        until_state(job, "parked")
        done(lattice)
        done(lattice, "bells")

    zero = {"type": "ZeroDivisionError", "message": "division by zero"}
    assert sorted(map(repr, told)) == sorted(
        map(repr, [("succeeded", [2], 0.5), ("failed", [0], zero), ("failed", [0], zero), ("failed", [4], 0.25)])
    )


def test_a_group_calls_back_once_when_all_of_it_has_succeeded(lattice: Lattice, sums: Sums) -> None:
    together = group([sums.add.message(n, n) for n in range(40)], broker=lattice.broker)
    together.add_completion_callback(sums.note.message("all"))
    together.add_completion_callback(sums.note.message("of them"))
    together.run()
    with working(lattice, threads=8):
        assert list(together.get_results(block=True, timeout=10_000)) == [2 * n for n in range(40)]
        until(lambda: len([one for one in sums.ran if one[0] == "note"]) == 2)
        sums.done()

    assert sorted(one for one in sums.ran if one[0] == "note") == [("note", "all"), ("note", "of them")]
    assert [one[0] for one in sums.ran[-2:]] == ["note", "note"]
    assert stored(lattice, "counter") == 0


def test_a_group_waits_for_a_pipeline_in_it_and_for_its_parked_members(lattice: Lattice, sums: Sums) -> None:
    broken = [True]

    @lattice.task(queue="first", max_retries=0)
    def fragile() -> None:
        if broken[0]:
            raise ValueError("no")

    failing = fragile.message()
    members = [sums.add.message(1, 1), pipeline([sums.add.message(2, 2), sums.add.message(1)], broker=lattice.broker)]
    together = group([*members, failing], broker=lattice.broker)
    together.add_completion_callback(sums.note.message("all"))
    together.run()
    with working(lattice):
        entry_id = until_state(lattice.job(failing.message_id), "parked").entry_id
        sums.done()
        assert ("note", "all") not in sums.ran
        broken[0] = False
        lattice.dead_letters("first").replay(entry_id, wait=10)
        until(lambda: ("note", "all") in sums.ran)
        sums.done()
    assert sums.ran.count(("note", "all")) == 1


def test_a_chain_survives_a_crash_between_decision_and_settlement_whole_and_once(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No middleware trap: the hooks have enqueued, the process ends before the ack is written."""
    with opened(store_url, lease_ms=500) as lattice:
        sums = Sums(lattice)
        message, last = sums.add.message(1, 2), sums.note.message()
        pipeline([message, last], broker=lattice.broker).run()
        with monkeypatch.context() as patch:
            patch.setattr(settle_room, "insert_invocations", never)
            with working(lattice):
                until(lambda: ("add", 1, 2) in sums.ran)
                until(lambda: never.calls > 0)
                assert stored(lattice) == 1  # what follows is not there before its settlement
                assert lattice.job(message.message_id).refresh().state == "running"
                kill(lattice)
    with opened(store_url, lease_ms=500) as lattice:
        sums = Sums(lattice)
        with working(lattice):
            assert result_of(lattice, last) == [3]
            sums.done()
        assert sums.ran == [("add", 1, 2), ("note", 3)]
        assert stored(lattice) == 2


def test_a_settlement_whose_answer_was_lost_doubles_nothing(
    lattice: Lattice, sums: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, lost = Session._plain, []

    def lose_the_answer(session: Session, sql: str) -> None:
        original(session, sql)
        if sql == "commit" and not lost and stored_ids(session) > 1:
            lost.append(sql)
            raise StoreUnavailable("the connection was lost")

    together = group([sums.add.message(1, 2)], broker=lattice.broker)
    together.add_completion_callback(sums.note.message("all"))
    together.run()
    monkeypatch.setattr(Session, "_plain", lose_the_answer)
    events = heard(lattice)
    with working(lattice):
        until(lambda: ("note", "all") in sums.ran)
        sums.done()

    assert lost == ["commit"]
    assert sums.ran == [("add", 1, 2), ("note", "all")]
    assert stored(lattice) == 2
    assert events.of("settle.refused") == []  # it was settled, only the answer was not heard


def test_what_hooks_enqueue_while_the_store_is_away_is_kept_with_the_outcome(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No middleware trap: the store is down at the moment a task ends."""
    gate, sums = Gate(), Sums(lattice)
    lattice.queues.ensure("second")  # as any process does that has used it

    @lattice.task(queue="first", max_retries=0, on_failure="note")
    def fail_later() -> None:
        gate.pass_through()
        raise ValueError("no")

    @lattice.task(queue="first")
    def succeed_later() -> int:
        gate.pass_through()
        return 5

    bad, good, last = fail_later.submit(), succeed_later.message(), sums.note.message()
    pipeline([good, last], broker=lattice.broker).run()
    events = heard(lattice)
    with working(lattice, threads=2):
        gate.await_entered(2)
        with monkeypatch.context() as patch:
            for name in ("fetch", "execute", "execute_many", "_plain"):
                patch.setattr(Session, name, unavailable)
            gate.open()
            until(lambda: events.of("store.unavailable"))
            until(lambda: len(lattice.broker._pump._buffer) == 2)
        assert result_of(lattice, last) == [5]
        until_state(bad, "parked")
        sums.done()

    assert [one[0] for one in sums.ran] == ["note", "note"]
    assert gate.entered == 2  # nothing ran twice
    assert events.of("store.recovered")


def test_a_queue_never_seen_before_is_found_once_the_store_is_back(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is repeated uncharged rather than the chain cut."""
    away = [True]

    @lattice.task(max_retries=0)
    def first() -> int:
        return 5

    message, last = first.message(), first.message().copy(queue_name="unseen", actor_name="elsewhere")
    pipeline([message, last], broker=lattice.broker).run()
    original = lattice.queues.ensure

    def ensure(name: str) -> Any:
        if name == "unseen" and away[0]:
            away[0] = False
            raise StoreUnavailable("the store does not answer")
        return original(name)

    monkeypatch.setattr(lattice.queues, "ensure", ensure)
    events = heard(lattice)
    with working(lattice):
        until_state(lattice.job(message.message_id), "succeeded")

    assert away == [False]
    assert len(events.of("task.released")) == 1
    assert lattice.job(message.message_id).refresh().attempt == 0
    assert lattice.job(last.message_id).refresh().state == "waiting"


def test_a_result_that_the_next_step_cannot_be_given_parks_the_step_before(lattice: Lattice, sums: Sums) -> None:
    """Nothing is dropped without a record that says so."""

    @lattice.task(queue="first", max_retries=3)
    def give() -> Any:
        return {1, 2}

    message = give.message()
    pipeline([message, sums.note.message()], broker=lattice.broker).run()
    with working(lattice):
        picture = until_state(lattice.job(message.message_id), "parked")

    letter = lattice.dead_letters("first").get(picture.entry_id)
    assert letter.reason == "schema"
    assert "what follows it could not be submitted: argument args[0] is a set" in letter.error
    assert sums.ran == []


def test_a_failure_whose_callback_cannot_be_submitted_stays_a_failure(lattice: Lattice, sums: Sums) -> None:
    @lattice.task(queue="first", max_retries=0, on_failure="note")
    def fail() -> None:
        raise ValueError("NUL \0 here")

    job = fail.submit()
    with working(lattice):
        picture = until_state(job, "parked")
    assert picture.error.startswith(r"ValueError: NUL \x00 here")
    assert "what follows it could not be submitted" in picture.error


def test_one_outcome_that_cannot_be_stored_does_not_block_the_others(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = settle_room.moves.rest

    def rest(session: Session, seq: int, *args: Any, **kwargs: Any) -> None:
        if "poison" in repr(args):
            raise StoreError("the store refused a statement")
        original(session, seq, *args, **kwargs)

    monkeypatch.setattr(settle_room.moves, "rest", rest)

    @lattice.task(max_retries=0)
    def fail(text: str) -> None:
        raise ValueError(text)

    events = heard(lattice)
    jobs = fail.submit_many([("one",), ("poison",), ("two",)])
    with working(lattice):
        done(lattice)

    assert states(jobs) == ["parked"] * 3
    assert [job.refresh().error for job in jobs] == ["ValueError: one", "not storable", "ValueError: two"]
    assert [event["task_id"] for event in events.of("settle.degraded")] == [jobs[1].id]


def test_an_outcome_that_can_be_stored_in_no_way_runs_again(lattice: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[int] = []
    original = settle_room.moves.rest

    def rest(session: Session, seq: int, *args: Any, **kwargs: Any) -> None:
        if len(refusals) < 3:
            refusals.append(seq)
            raise StoreError("the store refused a statement")
        original(session, seq, *args, **kwargs)

    monkeypatch.setattr(settle_room.moves, "rest", rest)
    monkeypatch.setattr("lattice_tasks.broker.pump._AUDIT_S", 0.05)
    runs: list[int] = []

    @lattice.task(max_retries=0)
    def fail() -> None:
        runs.append(1)
        raise ValueError("no")

    job = fail.submit()
    with working(lattice):
        until_state(job, "parked")
    assert (len(runs), job.refresh().attempt) == (2, 1)


def result_of(lattice: Lattice, message: Any) -> Any:
    """The result of a message that is perhaps not even submitted yet."""
    return message.get_result(backend=lattice.broker.result_backend, block=True, timeout=15_000)


def stored_ids(session: Session) -> int:
    return int(session.raw.execute("select count(*) from lattice_invocation").fetchone()[0])


def unavailable(*args: Any, **kwargs: Any) -> Any:
    raise StoreUnavailable("the store does not answer")


class _Never:
    calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        raise StoreUnavailable("the process is about to end")


never = _Never()


def kill(lattice: Lattice) -> None:
    """As if the process ended: its heart stands still, its pump writes nothing more and leaves without a word."""
    lattice.broker._heartbeat.stop()
    pump = lattice.broker._pump
    pump._buffer.clear()
    pump._is_claiming, pump._is_stopping = False, True
    pump._thread.join(timeout=10)
    pump._session.close()
    pump.stop = lambda flush_s: None

"""Dramatiq's own middleware works unchanged, and so does a user's."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from dramatiq.middleware import AgeLimit, CurrentMessage, Middleware, Retries, SkipMessage, TimeLimit, TimeLimitExceeded
from dramatiq.middleware.prometheus import Prometheus
from dramatiq.results import Results

from lattice_tasks import Lattice, Park, current
from lattice_tasks.broker import pump
from lattice_tasks.errors import InvalidOperation
from tests.working import Gate, boot_time_limit, change, done, opened, spin, states, stored, until, until_state, working

pytestmark = pytest.mark.recycled

SOON = {"min_backoff": 1, "max_backoff": 2}


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_a_task_beyond_its_time_limit_is_interrupted_and_parked_as_such(lattice: Lattice) -> None:
    caught: list[type[BaseException]] = []

    @lattice.task(time_limit=200, max_retries=0)
    def slow() -> None:
        try:
            spin()
        except BaseException as error:
            caught.append(type(error))
            raise

    job = slow.submit()
    boot_time_limit(lattice)
    with working(lattice):
        picture = until_state(job, "parked")

    assert caught == [TimeLimitExceeded]
    assert lattice.dead_letters("default").get(picture.entry_id).reason == "time_limit"


def test_a_time_limit_is_a_failure_that_may_be_retried_or_survived(lattice: Lattice) -> None:
    runs: list[int] = []

    @lattice.task(time_limit=200, max_retries=1, **SOON)
    def second_time_lucky() -> str:
        runs.append(1)
        if len(runs) == 1:
            spin()
        return "done"

    @lattice.task(time_limit=200, max_retries=0)
    def survive() -> str:
        with suppress(TimeLimitExceeded):
            spin()
        return "survived"

    jobs = [second_time_lucky.submit(), survive.submit()]
    boot_time_limit(lattice)
    with working(lattice):
        assert [job.result(timeout=15) for job in jobs] == ["done", "survived"]
    assert [job.refresh().attempt for job in jobs] == [1, 0]


def test_a_message_older_than_its_age_limit_expires(lattice: Lattice) -> None:
    ran: list[str] = []

    @lattice.task(max_age=60_000)
    def note(text: str) -> None:
        ran.append(text)

    old, of_its_own, young = note.submit("old"), note.send_with_options(args=("own",), max_age=10), note.submit("young")
    stored_ids = f"select seq from lattice_invocation where id = '{old.id}'"
    change(lattice, f"update lattice_invocation set submitted_at = submitted_at - 61000000 where seq in ({stored_ids})")
    change(
        lattice, f"update lattice_invocation set submitted_at = submitted_at - 20000 where seq not in ({stored_ids})"
    )
    with working(lattice):
        done(lattice)

    assert states([old, lattice.job(of_its_own.message_id), young]) == ["expired", "expired", "succeeded"]
    assert ran == ["young"]
    assert lattice.dead_letters("default").count() == 0


def test_the_age_limit_of_the_middleware_itself_holds_too(store_url: str) -> None:
    with opened(store_url, middleware=[AgeLimit(max_age=1_000)]) as lattice:

        @lattice.task
        def note() -> None: ...

        job = note.submit()
        change(lattice, "update lattice_invocation set submitted_at = submitted_at - 2000000")
        with working(lattice):
            until_state(job, "expired")


def test_a_shutdown_interrupts_those_who_asked_for_it(store_url: str) -> None:
    gate, caught = Gate(), []

    def declare(lattice: Lattice) -> Any:
        @lattice.task(notify_shutdown=True)
        def wait() -> None:
            try:
                gate.pass_through()
            except BaseException as error:
                caught.append(type(error).__name__)
                raise

        return wait

    with opened(store_url) as lattice:
        job = declare(lattice).submit()
        with working(lattice):
            gate.await_entered()
        assert caught == ["Shutdown"]
        assert (job.refresh().state, job.refresh().attempt) == ("waiting", 0)
        assert stored(lattice, "worker") == stored(lattice, "lease") == 0


def test_the_current_message_and_the_current_invocation_are_known_inside(lattice: Lattice) -> None:
    seen: list[Any] = []

    @lattice.task(queue="gpu", max_retries=1, **SOON)
    def look(number: int) -> None:
        message = CurrentMessage.get_current_message()
        now = current.invocation
        seen.append((message.message_id, message.args, message.options.get("retries", 0)))
        seen.append((now.id, now.queue, now.actor, now.attempt, now.submitted_at.utcoffset()))
        if now.attempt == 1:
            raise ValueError

    job = look.submit(7)
    with working(lattice):
        done(lattice, "gpu")

    assert seen == [
        (job.id, (7,), 0),
        (job.id, "gpu", "look", 1, timedelta(0)),
        (job.id, (7,), 1),
        (job.id, "gpu", "look", 2, timedelta(0)),
    ]
    assert CurrentMessage.get_current_message() is None


def test_dramatiqs_prometheus_middleware_sees_every_message(
    store_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("dramatiq_prom_db", str(tmp_path))
    with opened(store_url) as lattice:
        prometheus = Prometheus()
        lattice.broker.add_middleware(prometheus)

        name = f"take-{uuid4()}"  # the registry is the process's

        @lattice.task(name=name, max_retries=0)
        def take(number: int) -> None:
            assert number

        prometheus.after_process_boot(lattice.broker)
        take.submit_many([(0,), (1,), (2,)])
        with working(lattice):
            done(lattice)

        counted = prometheus.total_messages.labels("default", name)._value.get()
        errors = prometheus.total_errored_messages.labels("default", name)._value.get()
        assert (counted, errors) == (3, 1)


def test_dramatiqs_retries_are_refused_with_the_reason(sqlite_url: str) -> None:
    with pytest.raises(InvalidOperation, match="DeadLetters"), opened(sqlite_url, middleware=[Retries()]):
        pass
    with opened(sqlite_url) as lattice, pytest.raises(InvalidOperation, match="DeadLetters"):
        lattice.broker.add_middleware(Retries())


class Nosy(Middleware):
    """Notes what it sees; raises or skips where it is told to."""

    def __init__(self, **deeds: BaseException) -> None:
        self.deeds = deeds
        self.seen: list[str] = []

    def _see(self, signal: str) -> None:
        self.seen.append(signal)
        if signal in self.deeds:
            raise self.deeds[signal]

    def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
        self._see("before_enqueue")

    def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
        self._see("after_enqueue")

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._see("before_process")

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self._see("after_process")

    def after_skip_message(self, broker: Any, message: Any) -> None:
        self._see("after_skip")

    def before_ack(self, broker: Any, message: Any) -> None:
        self._see("before_ack")

    def after_ack(self, broker: Any, message: Any) -> None:
        self._see("after_ack")


def test_a_users_middleware_sees_every_signal_in_its_order(lattice: Lattice) -> None:
    nosy = Nosy()
    lattice.broker.add_middleware(nosy)

    @lattice.task
    def idle() -> None: ...

    idle.send()
    with working(lattice):
        done(lattice)

    assert nosy.seen == [
        "before_enqueue",
        "after_enqueue",
        "before_process",
        "after_process",
        "before_ack",
        "after_ack",
    ]


@pytest.mark.parametrize("signal", ["before_process", "after_process", "before_ack", "after_ack", "after_skip"])
def test_a_hook_that_fails_loses_nothing(sqlite_url: str, signal: str, caplog: pytest.LogCaptureFixture) -> None:
    """No middleware trap."""
    with opened(sqlite_url) as lattice:
        survive(lattice, signal, caplog)


def survive(lattice: Lattice, signal: str, caplog: pytest.LogCaptureFixture) -> None:
    lattice.broker.add_middleware(Nosy(**{signal: RuntimeError("the hook is broken")}))

    @lattice.task(max_retries=0)
    def idle() -> int:
        return 1

    @lattice.task(max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    jobs = [idle.submit(), fail.submit()]
    with caplog.at_level(logging.CRITICAL), working(lattice):
        done(lattice)

    assert states(jobs) == ["succeeded", "parked"]
    assert lattice.dead_letters("default").list()[0].error == "ValueError: no"


@pytest.mark.parametrize(("fails", "state"), [(False, "succeeded"), (True, "parked")])
def test_a_message_that_a_middleware_skips_is_acknowledged_or_parked_by_its_word(
    lattice: Lattice, fails: bool, state: str
) -> None:
    ran: list[int] = []

    class Doorman(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            if fails:
                message.fail()
            raise SkipMessage("not today")

    lattice.broker.add_middleware(Doorman())

    @lattice.task
    def idle() -> None:
        ran.append(1)

    job = idle.submit()
    with working(lattice):
        picture = until_state(job, "succeeded", "parked")

    assert (picture.state, ran) == (state, [])
    if fails:
        letter = lattice.dead_letters("default").get(picture.entry_id)
        assert letter.reason == "rejected"
        assert "not today" in letter.error


def test_a_result_reaches_every_hook_and_an_exception_too(lattice: Lattice) -> None:
    seen: list[Any] = []

    class Witness(Middleware):
        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            seen.append((message.message_id, message.args, result, type(exception)))

    lattice.broker.add_middleware(Witness())

    @lattice.task(max_retries=0)
    def invert(number: int) -> float:
        return 1 / number

    good, bad = invert.submit(2), invert.submit(0)
    with working(lattice, threads=1):
        done(lattice)

    assert seen == [(good.id, (2,), 0.5, type(None)), (bad.id, (0,), None, ZeroDivisionError)]


def test_the_priority_of_an_actor_decides_inside_a_worker(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "_STUCK_S", 60)  # what is claimed ahead stays
    with opened(store_url, lookahead_ms=10_000) as lattice:
        gate, order = Gate(), []

        @lattice.task
        def block() -> None:
            gate.pass_through()

        @lattice.task(priority=10)
        def late(number: int) -> None:
            order.append(("late", number))

        @lattice.task(priority=-10)
        def early(number: int) -> None:
            order.append(("early", number))

        late.submit(0)
        with working(lattice, threads=1) as worker:
            until(lambda: order)  # now a run time is known, and work is claimed ahead
            block.submit()
            gate.await_entered()
            for one in (late, early):
                one.submit_many([(1,), (2,), (3,)])
            until(lambda: len(worker.work_queue) == 6)
            gate.open()
            done(lattice)

        assert order[1:] == [("early", n) for n in (1, 2, 3)] + [("late", n) for n in (1, 2, 3)]


def test_a_queue_given_to_the_worker_is_the_only_one_it_serves(lattice: Lattice) -> None:
    """L-03"""

    @lattice.task(queue="gpu")
    def wanted() -> int:
        return 1

    @lattice.task(queue="cpu")
    def unwanted() -> int:
        return 2

    other, job = unwanted.submit(), wanted.submit()
    with working(lattice, queues={"gpu"}):
        assert job.result(timeout=10) == 1
        assert other.refresh().state == "waiting"


def test_what_stays_away_from_the_list_is_not_needed(store_url: str) -> None:
    """A list of one's own, without any of the defaults."""
    with opened(store_url, middleware=[TimeLimit()]) as lattice:

        @lattice.task(max_retries=0)
        def fail() -> None:
            raise Park("no")

        job = fail.submit()
        with working(lattice):
            until_state(job, "parked")
        assert not any(isinstance(one, Results) for one in lattice.broker.middleware)


def test_a_message_carries_the_time_of_its_submit(lattice: Lattice) -> None:
    seen: list[int] = []

    @lattice.task
    def look() -> None:
        seen.append(CurrentMessage.get_current_message().message_timestamp)

    job = look.submit()
    with working(lattice):
        done(lattice)

    assert abs(seen[0] - job.refresh().submitted_at.timestamp() * 1_000) < 1_000

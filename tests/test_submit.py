"""Every way to submit, and that it is stored when the call returns."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from lattice_tasks import Job, Lattice, current
from lattice_tasks.errors import InvalidInput, InvalidOperation, StoreError, StoreUnavailable, TaskNotFound
from lattice_tasks.store.engine import Session
from lattice_tasks.tasks import submit as submit_room
from tests.working import change, done, heard, opened, rows, states, stored, until_state, working

pytestmark = pytest.mark.recycled

ROOT = Path(__file__).resolve().parents[1]
LEFT = "select deadline_at - submitted_at from lattice_invocation"


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_a_submit_is_stored_runs_and_answers(lattice: Lattice) -> None:
    @lattice.task(queue="gpu")
    def train(run: str, lr: float = 0.1) -> dict[str, Any]:
        return {"run": run, "lr": lr, "id": current.invocation.id, "attempt": current.invocation.attempt}

    job = train.submit("r1", lr=0.2)

    assert (job.created, job.args_mismatch, job.refresh().state) == (True, False, "waiting")
    with working(lattice):
        assert job.result(timeout=10) == {"run": "r1", "lr": 0.2, "id": job.id, "attempt": 1}
    picture = job.refresh()
    assert (picture.state, picture.queue, picture.actor, picture.attempt) == ("succeeded", "gpu", "train", 0)
    assert picture.finished_at is not None
    assert picture.submitted_at <= picture.finished_at


def test_a_plain_call_runs_in_place_and_stores_nothing(lattice: Lattice) -> None:
    @lattice.task
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    assert stored(lattice) == 0


def test_a_batch_answers_in_order_and_is_handed_out_in_order(lattice: Lattice) -> None:
    ran: list[int] = []

    @lattice.task
    def note(number: int, factor: int = 1) -> int:
        ran.append(number)
        return number * factor

    jobs = note.submit_many([(number, 10) if number % 2 else (number,) for number in range(500)])

    assert [row[0] for row in rows(lattice, "select id from lattice_invocation order by seq")] == ids(lattice, jobs)
    with working(lattice, threads=1):
        done(lattice)
        assert [job.result(timeout=1) for job in jobs] == [n * 10 if n % 2 else n for n in range(500)]
    assert ran == list(range(500))


def test_a_batch_is_one_transaction(lattice: Lattice) -> None:
    """Reliability 21: all or none, whichever row is refused."""

    @lattice.task
    def idle(number: int) -> None: ...

    idle.submit_many([(1,), (2,)])
    queue_id, top = rows(lattice, "select queue_id, max(seq) from lattice_ready group by queue_id")[0]
    for seq in range(top + 2, top + 10):  # rows in the way, but for the first of the batch
        change(lattice, "insert into lattice_ready values (%s, %s, 0, 0, 0)", queue_id, seq)
        change(lattice, "insert into lattice_scheduled values (%s, 0, %s, 0, 0, 0)", queue_id, seq)
    for options in ({}, {"_deadline": timedelta(hours=1)}, {"_delay": timedelta(hours=1)}):
        with pytest.raises(StoreError):
            idle.submit_many([(3,), (4,), (5,)], **options)

    assert (stored(lattice), stored(lattice, "ready"), stored(lattice, "scheduled")) == (2, 10, 8)


def test_an_unacceptable_call_in_a_batch_stores_nothing_of_it(lattice: Lattice) -> None:
    @lattice.task
    def idle(value: Any) -> None: ...

    with pytest.raises(InvalidInput, match=r"args\[0\]"):
        idle.submit_many([(1,), ({2},), (3,)])
    with pytest.raises(InvalidInput, match="tuples of positional arguments"):
        idle.submit_many([("ok",), "not a tuple"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="more than 10000"):
        idle.submit_many([(1,)] * 10_001)

    assert stored(lattice) == 0
    assert idle.submit_many([]) == []


def test_a_batch_may_be_delayed_and_have_a_deadline(lattice: Lattice) -> None:
    @lattice.task
    def idle(number: int) -> None: ...

    jobs = idle.submit_many([(1,), (2,)], _delay=timedelta(hours=1), _deadline=timedelta(hours=2), _priority=3)

    assert states(jobs) == ["scheduled", "scheduled"]
    assert [job.refresh().priority for job in jobs] == [3, 3]
    assert [(each - 7_200_000_000) // 1_000 for (each,) in rows(lattice, LEFT)] == [0, 0]


def test_dramatiqs_own_verbs_and_plain_actors_are_stored_alike(lattice: Lattice) -> None:
    ran: list[tuple[Any, ...]] = []

    @lattice.task(queue="gpu")
    def ours(*args: Any, **kwargs: Any) -> None:
        ran.append(("ours", args, kwargs))

    @dramatiq.actor(broker=lattice.broker, queue_name="gpu")
    def plain(*args: Any, **kwargs: Any) -> None:
        ran.append(("plain", args, kwargs))

    messages = [
        ours.send(1, x=2),
        ours.send_with_options(args=(3,), kwargs={"x": 4}),
        plain.send(5),
        ours.message(6),
        plain.message_with_options(args=(7,), max_retries=0),
    ]
    lattice.broker.enqueue(messages[3])
    lattice.broker.enqueue(messages[4])

    assert [lattice.job(message.message_id).refresh().state for message in messages] == ["waiting"] * 5
    with working(lattice, threads=1):
        done(lattice, "gpu")
    assert ran == [
        ("ours", (1,), {"x": 2}),
        ("ours", (3,), {"x": 4}),
        ("plain", (5,), {}),
        ("ours", (6,), {}),
        ("plain", (7,), {}),
    ]


def test_enqueueing_one_message_twice_is_one_invocation(lattice: Lattice) -> None:
    @lattice.task
    def idle() -> None: ...

    message = idle.message()
    lattice.broker.enqueue(message)
    lattice.broker.enqueue(message)

    assert stored(lattice) == stored(lattice, "ready") == 1


def test_a_delay_is_kept_in_the_store(lattice: Lattice) -> None:
    @lattice.task
    def idle() -> None: ...

    later = datetime.now(timezone(timedelta(hours=5))) + timedelta(hours=1)
    jobs = [
        idle.submit(_delay=timedelta(hours=1)),
        idle.submit(_delay=later),
        lattice.job(idle.send_with_options(delay=3_600_000).message_id),
        lattice.job(idle.send_with_options(delay=timedelta(hours=1)).message_id),
    ]
    past = idle.submit(_delay=datetime.now(UTC) - timedelta(hours=1))

    assert states([*jobs, past]) == ["scheduled"] * 5
    waits = rows(lattice, "select due_at - submitted_at from lattice_scheduled join lattice_invocation using (seq)")
    assert all(abs(wait - 3_600_000_000) < 5_000_000 for (wait,) in waits if wait > 0)
    with working(lattice):
        until_state(past, "succeeded")
    assert states(jobs) == ["scheduled"] * 4


def test_what_has_passed_its_deadline_expires_without_a_run(lattice: Lattice) -> None:
    """T-01"""
    ran: list[int] = []

    @lattice.task
    def note(number: int) -> None:
        ran.append(number)

    expired = [note.submit(1, _deadline=timedelta(0)), note.submit(2, _deadline=datetime(2020, 1, 1, tzinfo=UTC))]
    in_time = note.submit(3, _deadline=timedelta(hours=1))
    events = heard(lattice)
    with working(lattice):
        done(lattice)

    assert states([*expired, in_time]) == ["expired", "expired", "succeeded"]
    assert ran == [3]
    assert [event["task_id"] for event in events.of("task.expired")] == [job.id for job in expired]


def test_submitting_by_names_needs_no_function(lattice: Lattice) -> None:
    job = lattice.submit("gpu", "train", ("r1",), {"lr": 0.5}, key="k", priority=2, delay=timedelta(minutes=1))

    picture = lattice.job(job.id).refresh()
    assert (picture.queue, picture.actor, picture.key, picture.priority) == ("gpu", "train", "k", 2)


def test_an_answer_that_was_lost_after_the_commit_is_repeated_to_exactly_one(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reliability 12"""

    @lattice.task
    def idle(number: int) -> None: ...

    idle.submit(0)
    lost: list[str] = []
    with monkeypatch.context() as patch:
        lose_answers(patch, lost)
        job = idle.submit(1)
        batch = idle.submit_many([(2,), (3,)])
        keyed = idle.submit(4, _key="k")

    assert len(lost) == 3
    assert (job.created, keyed.created, keyed.args_mismatch) == (True, True, False)
    assert states([job, *batch, keyed]) == ["waiting"] * 4
    assert stored(lattice) == stored(lattice, "ready") == 5


def test_a_store_that_stays_away_is_an_error_within_its_time(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(store_url, store_timeout_ms=200) as lattice:
        lattice.migrate()
        lattice.queues.add("default")

        def gone(*args: Any) -> None:
            raise StoreUnavailable("the store does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(submit_room, "insert_invocations", gone)
            with pytest.raises(StoreUnavailable):
                lattice.submit("default", "idle")

        assert stored(lattice) == 0


def test_a_job_of_an_unknown_id_is_not_found(lattice: Lattice) -> None:
    for task_id in (
        "",
        "x",
        "0198c5b2-7d1e-7c4a-9f10-2b6d1c3e4f50",
        "' or 1=1 --",
        "é" * 36,
        "\ud800",
        "\0",
        "1" * 9999,
    ):
        with pytest.raises(TaskNotFound, match="no task"):
            lattice.job(task_id).refresh()


def test_an_id_is_found_however_it_is_written(lattice: Lattice) -> None:
    job = lattice.submit("q", "a")

    assert lattice.job(job.id.upper()).refresh().id == job.id


def test_result_gives_up_in_time_and_may_be_asked_again(lattice: Lattice) -> None:
    @lattice.task
    def one() -> int:
        return 1

    job = one.submit()
    with pytest.raises(TimeoutError, match="it goes on"):
        job.result(timeout=0.01)
    with working(lattice):
        assert job.result(timeout=10) == job.result() == 1


def test_current_is_only_known_inside_a_task() -> None:
    with pytest.raises(InvalidOperation):
        current.invocation  # noqa: B018


def test_an_unknown_option_of_a_task_is_refused(lattice: Lattice) -> None:
    with pytest.raises(InvalidInput, match="unknown option 'colour'"):
        lattice.task(colour="red")(lambda: None)


def test_an_actor_on_our_broker_is_dramatiqs(lattice: Lattice) -> None:
    @lattice.task(queue="team/gpu", name="train it")
    def train() -> None: ...

    assert isinstance(train, dramatiq.Actor)
    assert lattice.broker.get_actor("train it") is train
    assert "team/gpu" in lattice.broker.get_declared_queues()


@pytest.mark.slow
def test_the_types_of_a_task_are_those_of_its_function(tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(
        "from lattice_tasks import Lattice\n"
        "lattice = Lattice()\n"
        "@lattice.task(queue='gpu')\n"
        "def train(run: str, lr: float = 0.1) -> float: return lr\n"
        "@lattice.task\n"
        "def bare(run: str) -> int: return 1\n"
        "good: float = train.submit('r1', lr=0.2).result()\n"
        "train.submit('r1', lr='x')\n"
        "train.submit()\n"
        "text: str = train.submit('r1').result()\n"
        "bare.submit(1)\n"
        "text = bare.submit('r').result()\n"
        "good = train.submit('r1', lr=0.3, _key='k').result()\n"
    )

    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout

    assert [int(line.split(":")[1]) for line in told.splitlines() if ": error:" in line] == [8, 9, 10, 11, 12], told


def ids(lattice: Lattice, jobs: list[Job[Any]]) -> list[Any]:
    kind = type(rows(lattice, "select id from lattice_invocation limit 1")[0][0])
    return [kind(job.id) for job in jobs]


def lose_answers(patch: pytest.MonkeyPatch, lost: list[str]) -> None:
    """The first try of each insert commits, and then its answer does not arrive."""
    original = submit_room.insert_invocations

    def insert(session: Session, batch: Any) -> Any:
        created = original(session, batch)
        if batch[0].id not in lost:
            lost.append(batch[0].id)
            raise StoreUnavailable("the connection was lost")
        return created

    patch.setattr(submit_room, "insert_invocations", insert)

"""Keys: one invocation for each (namespace, queue, key), whoever asks, however often and however much at once."""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import peewee
import psycopg
import pytest

from lattice_tasks import Job, Lattice, Park
from lattice_tasks.errors import InvalidInput
from lattice_tasks.store.submits import find_holders
from lattice_tasks.tasks import submit as submit_room
from tests.working import change, done, opened, rows, states, stored, until_state, working

pytestmark = pytest.mark.recycled

THREADS = 20


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def submit(lattice: Lattice, key: str, *args: Any, queue: str = "q", **kwargs: Any) -> Job[Any]:
    return lattice.submit(queue, "idle", args, kwargs, key=key)


def test_a_repeated_key_answers_with_the_first_invocation_and_creates_nothing(lattice: Lattice) -> None:
    """L-30"""
    first, second = submit(lattice, "k", 1), submit(lattice, "k", 1)

    assert (first.created, first.args_mismatch) == (True, False)
    assert (second.id, second.created, second.args_mismatch) == (first.id, False, False)
    assert (stored(lattice), stored(lattice, "ready")) == (1, 1)


def test_a_key_is_unique_within_its_queue_and_its_namespace(lattice: Lattice, store_url: str) -> None:
    """L-31, L-21, C07"""
    with opened(store_url, namespace="other") as other:
        jobs = [submit(lattice, "k"), submit(lattice, "k", queue="other"), submit(other, "k")]

        assert len({job.id for job in jobs}) == 3
        assert all(job.created for job in jobs)
        with pytest.raises(LookupError):
            lattice.job(jobs[2].id).refresh()
        with pytest.raises(LookupError):
            other.job(jobs[0].id).cancel()


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        (((1,), {}), ((2,), {}), True),
        (((1,), {}), ((1, 2), {}), True),
        (((1,), {}), ((), {"x": 1}), True),
        (((1,), {}), ((True,), {}), True),
        (((1,), {}), ((1.0,), {}), True),
        ((("1",), {}), ((1,), {}), True),
        (((), {"a": 1, "b": {"c": 2, "d": 3}}), ((), {"b": {"d": 3, "c": 2}, "a": 1}), False),
        ((([1, 2],), {}), (((1, 2),), {}), False),
        (((None,), {}), ((None,), {}), False),
    ],
)
def test_other_arguments_are_told_and_another_order_of_keys_is_no_difference(
    sqlite_url: str, before: Any, after: Any, differs: bool
) -> None:
    """L-34, C08"""
    with opened(sqlite_url) as lattice:
        first = lattice.submit("q", "idle", *before, key="k")
        second = lattice.submit("q", "idle", *after, key="k")

    assert (second.id, second.created, second.args_mismatch) == (first.id, False, differs)


def test_another_actor_or_an_unreadable_holder_is_a_difference(lattice: Lattice) -> None:
    """C08"""
    submit(lattice, "k")
    assert lattice.submit("q", "other", key="k").args_mismatch
    change(lattice, "update lattice_invocation set body = %s", b"\x80")
    assert submit(lattice, "k").args_mismatch


def test_a_key_is_remembered_after_every_end(lattice: Lattice) -> None:
    """L-34"""

    @lattice.task(queue="q", max_retries=0)
    def end(how: str) -> None:
        if how == "parked":
            raise Park("no")

    jobs = {how: submit_end(lattice, how) for how in ("succeeded", "parked", "cancelled")}
    jobs["cancelled"].cancel()
    with working(lattice):
        done(lattice, "q")
        assert states(jobs.values()) == list(jobs)

        again = [submit_end(lattice, how) for how in jobs]

    assert [(job.id, job.created) for job in again] == [(job.id, False) for job in jobs.values()]


def submit_end(lattice: Lattice, how: str) -> Job[Any]:
    return lattice.submit("q", "end", (how,), key=f"k-{how}")


def test_the_key_of_a_parked_task_does_not_swallow_its_replay(lattice: Lattice) -> None:
    """T-07"""
    tries: list[int] = []

    @lattice.task(queue="q", max_retries=0)
    def heal() -> int:
        tries.append(1)
        return 1 // (len(tries) - 1)

    job = heal.submit(_key="k")
    with working(lattice):
        entry_id = until_state(job, "parked").entry_id
        assert lattice.dead_letters("q").replay(entry_id, wait=10).state == "succeeded"
    assert (job.result(), job.refresh().key, heal.submit(_key="k").id) == (1, "k", job.id)


def test_a_batch_answers_each_input_also_when_it_repeats_itself(lattice: Lattice) -> None:
    """C45"""
    holder = submit(lattice, "b", 2)
    lattice.queues.add("other")

    drafts = [
        lattice._submitter.draft(queue, "idle", (number,), key=key)
        for queue, number, key in [
            ("q", 1, "a"),
            ("q", 2, "b"),
            ("q", 3, "c"),
            ("q", 9, "a"),
            ("q", 4, None),
            ("other", 1, "a"),
        ]
    ]
    answers = lattice._submitter.submit(drafts)

    assert [(answer.created, answer.args_mismatch) for answer in answers] == [
        (True, False),
        (False, False),
        (True, False),
        (False, True),
        (True, False),
        (True, False),
    ]
    assert (answers[1].id, answers[3].id) == (holder.id, answers[0].id)
    assert len({answer.id for answer in answers}) == stored(lattice) == stored(lattice, "ready") == 5


def test_many_at_once_create_exactly_one(lattice: Lattice) -> None:
    """L-32"""
    for key in ("a", "b", "c"):
        jobs = at_once(lambda key=key: submit(lattice, key, 1))

        assert len({job.id for job in jobs}) == 1
        assert sum(job.created for job in jobs) == 1
    assert stored(lattice) == stored(lattice, "ready") == 3


def test_many_at_once_inside_open_transactions_create_one_and_spoil_none(store_url: str) -> None:
    """C06: the callers go on using their transactions."""
    with opened(store_url) as lattice:
        submit(lattice, "before")
        with lattice.engine.session() as session:
            session.raw.execute("create table mine (value integer)")

        def in_transaction() -> Job[Any]:
            connection = connect(store_url)
            try:
                with lattice.transaction(connection):
                    job = submit(lattice, "k", 1)
                    run(connection, "insert into mine values (1)")
                    assert submit(lattice, "k", 1).id == job.id
            finally:
                connection.close()
            return job

        jobs = at_once(in_transaction)

        assert len({job.id for job in jobs}) == 1
        assert sum(job.created for job in jobs) == 1
        assert rows(lattice, "select count(*) from mine") == [(THREADS,)]
        assert stored(lattice) == 2


def test_a_holder_that_is_pruned_in_between_leaves_its_key_to_the_next(
    lattice: Lattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C06: no answer names an invocation that is not there."""
    first = submit(lattice, "k", 1)

    def look_too_late(*args: Any) -> Any:
        monkeypatch.undo()
        change(lattice, "delete from lattice_ready")
        change(lattice, "delete from lattice_invocation")
        return find_holders(*args)

    monkeypatch.setattr(submit_room, "find_holders", look_too_late)
    second = submit(lattice, "k", 2)

    assert (second.created, second.args_mismatch, second.id != first.id) == (True, False, True)
    assert second.refresh().state == "waiting"
    assert stored(lattice) == stored(lattice, "ready") == 1


def test_a_holder_may_finish_at_any_moment(lattice: Lattice) -> None:
    """C06: no error while workers settle what others repeat."""

    @lattice.task(queue="q")
    def idle(*args: Any) -> None: ...

    with working(lattice):
        for _ in range(150):
            key = str(uuid4())
            first = submit(lattice, key, 1)
            repeated = [submit(lattice, key, 1) for _ in range(3)]
            assert {job.id for job in repeated} == {first.id}
            assert not any(job.created or job.args_mismatch for job in repeated)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", "\ud800", "a\nb", 7, b"k", True])
def test_a_bad_key_is_refused(sqlite_url: str, key: Any) -> None:
    with opened(sqlite_url) as lattice:
        with pytest.raises(InvalidInput, match="_key="):
            submit(lattice, key)
        assert stored(lattice) == 0


@pytest.mark.parametrize("key", ["k", "x" * 255, "schlüssel 鍵 🔑", "' or 1=1 --", "%s", "a/b"])
def test_any_printable_text_is_a_key(lattice: Lattice, key: str) -> None:
    assert submit(lattice, key).id == submit(lattice, key).id
    assert submit(lattice, key).refresh().key == key


def at_once(work: Callable[[], Job[Any]]) -> list[Job[Any]]:
    """What so many threads got that began together."""
    barrier, got, errors = threading.Barrier(THREADS), [], []

    def run_one() -> None:
        barrier.wait()
        try:
            got.append(work())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_one) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(got) == THREADS
    return got


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        database = peewee.SqliteDatabase(url.removeprefix("sqlite:///"), timeout=30)
        database.connect()
        return database
    return psycopg.connect(url)


def run(connection: Any, sql: str) -> None:
    connection.execute_sql(sql) if isinstance(connection, peewee.Database) else connection.execute(sql)

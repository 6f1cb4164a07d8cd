"""The read-only pictures, over rows laid down by hand, on both engines."""

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

from lattice_tasks import insights
from lattice_tasks.errors import InvalidInput, QueueNotFound, TaskNotFound
from lattice_tasks.settings import Settings
from lattice_tasks.store import queues as queue_rows
from lattice_tasks.store.engine import Engine, Session, Statement
from lattice_tasks.store.schema import migrate

INVOCATION = Statement(
    """insert into lattice_invocation (id, queue_id, actor, body, priority, submitted_at, state, attempt, error, result)
       values (%s, %s, %s, %s, 0, {now}, %s, %s, %s, %s) returning seq""",
)
READY = Statement("insert into lattice_ready (queue_id, seq, priority, attempt, flags) values (%s, %s, 0, %s, %s)")
SCHEDULED = Statement(
    """insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
       values (%s, {now} + 60000000, %s, 0, 1, 0)"""
)
LEASE = Statement(
    """insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
       values (%s, %s, 1, %s, 0, 2, %s, {now})"""
)
WORKER = Statement(
    """insert into lattice_worker (namespace_id, host, pid, threads, queues, actors, version, state, beat, started_at,
           seen_at) values (%s, 'host-a', 77, 8, %s, %s, '1', 'active', 3, {now}, {now} - 5000000) returning id"""
)


class Store:
    """A namespace with one queue `gpu`, and rows by hand."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.namespace_id = queue_rows.open_namespace(session, "default", "wake")[0]
        row = queue_rows.add_queue(session, self.namespace_id, "gpu", "fifo", None, None, "evict")
        assert row is not None
        self.queue_id = row[0]

    def invocation(self, code: int = 0, actor: str = "train", **more: object) -> tuple[str, int]:
        task_id = str(uuid4())
        body = more.get("body", b'{"args":[1],"kwargs":{"lr":0.1},"options":{"x":1}}')
        columns = (task_id, self.queue_id, actor, body, code, more.get("attempt", 0), more.get("error"))
        return task_id, self.session.fetch(INVOCATION, (*columns, more.get("result")))[0][0]

    def waiting(self, **more: object) -> str:
        task_id, seq = self.invocation(**more)
        self.session.execute(READY, (self.queue_id, seq, 3, more.get("flags", 0)))
        return task_id

    def scheduled(self) -> str:
        task_id, seq = self.invocation()
        self.session.execute(SCHEDULED, (self.queue_id, seq))
        return task_id

    def running(self, worker_id: int, flags: int = 0) -> str:
        task_id, seq = self.invocation()
        self.session.execute(LEASE, (worker_id, seq, self.queue_id, flags))
        return task_id

    def worker(self, queues: tuple[str, ...] = ("gpu",), actors: tuple[str, ...] = ("train",)) -> int:
        return self.session.fetch(WORKER, (self.namespace_id, json.dumps(queues), json.dumps(actors)))[0][0]


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    engine = Engine(Settings(store_url=store_url))
    migrate(engine)
    with engine.session() as session:
        yield Store(session)
    engine.close()


def test_the_place_of_an_open_invocation_is_its_state(store: Store) -> None:
    waiting, scheduled = store.waiting(flags=3), store.scheduled()
    worker_id = store.worker()
    running = store.running(worker_id, flags=4)

    tasks = {task.id: task for task in insights.list_tasks(store.session, store.namespace_id)}

    assert {task_id: (task.state, task.attempt) for task_id, task in tasks.items()} == {
        waiting: ("waiting", 3),
        scheduled: ("scheduled", 1),
        running: ("running", 2),
    }
    assert (tasks[waiting].is_replay, tasks[waiting].is_suspect, tasks[running].cancel_requested) == (True, True, True)
    assert tasks[scheduled].due_at is not None
    assert tasks[scheduled].due_at > tasks[scheduled].submitted_at
    assert (tasks[running].worker_id, tasks[waiting].worker_id) == (worker_id, None)
    assert tasks[running].started_at is not None


@pytest.mark.parametrize("state", ["waiting", "scheduled", "running", "succeeded", "parked", "cancelled"])
def test_a_list_narrowed_to_a_state_holds_just_that_state(store: Store, state: str) -> None:
    store.waiting(), store.scheduled(), store.running(store.worker())
    for code in (1, 2, 4):
        store.invocation(code)

    found = insights.list_tasks(store.session, store.namespace_id, state=state)

    assert [task.state for task in found] == [state]


def test_a_list_is_newest_first_and_ends_at_its_limit(store: Store) -> None:
    ids = [store.waiting() for _ in range(5)]

    for state in (None, "waiting"):
        found = insights.list_tasks(store.session, store.namespace_id, state=state, limit=3)

        assert [task.id for task in found] == ids[:1:-1]


def test_filters_by_actor_and_queue_hold_together(store: Store) -> None:
    store.waiting(actor="other")
    wanted = store.waiting(actor="train")

    found = insights.list_tasks(store.session, store.namespace_id, queue="gpu", actor="train", state="waiting")

    assert [task.id for task in found] == [wanted]


def test_another_namespace_sees_nothing(store: Store) -> None:
    """L-21: nothing crosses between namespaces."""
    task_id = store.waiting()
    store.worker()
    stranger = queue_rows.open_namespace(store.session, "stranger", "wake")[0]

    assert insights.list_tasks(store.session, stranger) == []
    assert insights.queue_depth(store.session, stranger) == []
    assert insights.list_workers(store.session, stranger) == []
    assert insights.count_states(store.session, stranger) == {}
    with pytest.raises(TaskNotFound):
        insights.show_task(store.session, stranger, task_id)


def test_what_a_filter_does_not_know_is_an_error_and_not_everything(store: Store) -> None:
    store.waiting()

    with pytest.raises(QueueNotFound, match="nope"):
        insights.list_tasks(store.session, store.namespace_id, queue="nope")
    with pytest.raises(InvalidInput, match="waiting, scheduled"):
        insights.list_tasks(store.session, store.namespace_id, state="new")
    with pytest.raises(InvalidInput, match="at least 1"):
        insights.list_tasks(store.session, store.namespace_id, limit=0)
    with pytest.raises(TaskNotFound, match="UUID"):
        insights.show_task(store.session, store.namespace_id, "7; drop table")


def test_a_task_is_shown_with_what_it_carries(store: Store) -> None:
    task_id, _ = store.invocation(1, result=b'{"loss": 0.5}')

    shown = insights.show_task(store.session, store.namespace_id, task_id.upper())

    assert (shown.task.id, shown.args, shown.kwargs, shown.options) == (task_id, [1], {"lr": 0.1}, {"x": 1})
    assert shown.result == {"loss": 0.5}


@pytest.mark.parametrize("body", [b"\x80\x81", b"", b"[1]", b"[" * 100_000, b"null"])
def test_a_body_that_cannot_be_read_is_shown_without_arguments(store: Store, body: bytes) -> None:
    task_id = store.waiting(body=body)

    shown = insights.show_task(store.session, store.namespace_id, task_id)

    assert (shown.args, shown.kwargs, shown.options) == (None, None, {})


def test_a_queue_shows_its_depth_its_oldest_task_and_who_serves_it(store: Store) -> None:
    first = store.waiting()
    store.waiting(), store.scheduled(), store.running(store.worker()), store.worker(queues=("other",))

    (queue,) = insights.queue_depth(store.session, store.namespace_id, "gpu")

    assert (queue.depth.waiting, queue.depth.scheduled, queue.depth.running, queue.depth.parked) == (2, 1, 1, 0)
    assert queue.workers == 1
    assert queue.oldest_waiting_at == insights.show_task(store.session, store.namespace_id, first).task.submitted_at


def test_workers_show_how_long_they_have_been_silent(store: Store) -> None:
    store.running(store.worker(actors=("train", "team/gpu")))

    (worker,) = insights.list_workers(store.session, store.namespace_id)

    assert 5 <= worker.silent_s < 60
    assert (worker.running, worker.queues, worker.pid) == (1, ("gpu",), 77)
    assert insights.known_actors([worker]) == {"train", "team/gpu"}


def test_states_are_counted_over_everything_kept(store: Store) -> None:
    """I1: open and finished add up to what was accepted."""
    store.waiting(), store.scheduled(), store.running(store.worker())
    for code in (1, 1, 2, 6):
        store.invocation(code)

    counted = insights.count_states(store.session, store.namespace_id)

    assert counted == {"waiting": 1, "scheduled": 1, "running": 1, "succeeded": 2, "parked": 1, "discarded": 1}


def test_a_sound_store_has_no_damage(store: Store) -> None:
    store.waiting(), store.scheduled(), store.running(store.worker()), store.invocation(1)

    assert {check.code: check.count for check in insights.check_integrity(store.session) if check.count} == {}


def test_every_kind_of_damage_is_found(store: Store) -> None:
    store.invocation(0)  # open, nowhere
    _, finished = store.invocation(1)
    store.session.execute(READY, (store.queue_id, finished, 0, 0))
    _, doubled = store.invocation(0)
    store.session.execute(READY, (store.queue_id, doubled, 0, 0))
    store.session.execute(SCHEDULED, (store.queue_id, doubled))
    store.running(worker_id=4711)
    store.invocation(2)

    counted = {check.code: check.count for check in insights.check_integrity(store.session) if check.count}

    assert counted == {
        "open_without_place": 1,
        "place_without_open_invocation": 1,
        "two_places": 1,
        "lease_without_worker": 1,
        "parked_without_dead_letter": 1,
    }


def test_the_store_tells_its_health(store: Store) -> None:
    health = insights.store_health(store.session)

    assert health.engine == store.session.dialect
    assert health.size_bytes > 0
    assert "lattice_lease" in {table.name for table in health.tables}
    assert health.settings["fsync" if health.engine == "postgres" else "journal_mode"] in ("on", "off", "wal")


@pytest.mark.postgres
def test_a_transaction_that_is_held_open_is_named(postgres_url: str) -> None:
    """C40: status names the oldest transaction."""
    engine = Engine(Settings(store_url=postgres_url))
    holder = engine.open_session()
    pid = holder.raw.info.backend_pid
    with holder.transaction(), engine.session() as session:
        holder.fetch(Statement("select 1"))

        oldest = insights.store_health(session).oldest_transaction

    assert oldest is not None
    assert oldest[0] == pid
    assert oldest[3] >= 0
    holder.close()
    engine.close()


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_a_sqlite_with_the_wal_fault_is_known_by_its_version(version: tuple[int, ...], faulty: bool) -> None:
    assert insights.has_wal_fault("sqlite", version) is faulty
    assert insights.has_wal_fault("postgres", version) is False

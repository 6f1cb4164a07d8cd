"""Queues: made by the first submit, flat names, one namespace each, paused and resumed for everybody."""

import threading
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.admin.queues import queues
from lattice_tasks.errors import Conflict, QueueClosed, QueueExists, QueueNotFound
from lattice_tasks.insights import QueuePicture
from lattice_tasks.queues.record import QueueRecord, Queues
from lattice_tasks.settings import Settings
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.working import change, done, heard, opened, rows, states, stored, until, until_state, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_the_first_submit_creates_its_queue_with_the_defaults(lattice: Lattice) -> None:
    """L-40, L-10"""
    events = heard(lattice)

    lattice.submit("gpu", "train")

    queue = lattice.queues.get("gpu")
    assert (queue.name, queue.kind, queue.state, queue.namespace) == ("gpu", "fifo", "active", "default")
    assert (queue.retention_ms, queue.dlq_capacity, queue.dlq_on_full) == (None, None, "evict")
    assert (queue.updated_at - queue.created_at).total_seconds() < 0.01
    assert events.of("queue.created") == [{"queue": "gpu", "auto": True}]
    lattice.submit("gpu", "train")
    assert len(events.of("queue.created")) == 1


def test_many_first_submits_at_once_create_one_queue_and_every_invocation(store_url: str) -> None:
    """L-41"""
    lattices = [Lattice(store_url, set_default=False, log_level="critical") for _ in range(4)]
    barrier, errors = threading.Barrier(12), []

    def submit(lattice: Lattice) -> None:
        barrier.wait()
        try:
            lattice.submit("new", "idle")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=submit, args=(lattices[n % 4],)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert (stored(lattices[0], "queue"), stored(lattices[0]), stored(lattices[0], "ready")) == (1, 12, 12)
    for lattice in lattices:
        lattice.close()


def test_a_submit_changes_no_queue_that_is_there(lattice: Lattice) -> None:
    """L-42"""
    before = lattice.queues.add("gpu", retention_ms=5, dlq_capacity=7)

    lattice.submit("gpu", "train")
    lattice.dead_letters("gpu").count()

    assert lattice.queues.get("gpu") == before


def test_a_name_is_taken_once_in_its_namespace(lattice: Lattice, store_url: str) -> None:
    """L-20, L-21, L-44"""
    lattice.queues.add("gpu")
    with pytest.raises(QueueExists):
        lattice.queues.add("gpu", dlq_capacity=3)
    assert lattice.queues.get("gpu").dlq_capacity is None
    with opened(store_url, namespace="other") as other:
        assert other.queues.list() == []
        with pytest.raises(QueueNotFound):
            other.queues.get("gpu")
        theirs = other.queues.add("gpu")
        assert theirs.id != lattice.queues.get("gpu").id
        other.queues.pause("gpu")
        assert lattice.queues.get("gpu").state == "active"


def test_namespaces_cross_nowhere(lattice: Lattice, store_url: str) -> None:
    """L-21, I12"""
    ran: list[str] = []

    def declare(one: Lattice) -> Any:
        @one.task(queue="gpu", max_retries=0)
        def work(fails: bool) -> str:
            ran.append(one.settings.namespace)
            assert not fails
            return one.settings.namespace

        return work

    with opened(store_url, namespace="other") as other:
        ours, theirs = declare(lattice), declare(other)
        jobs = [ours.submit(False), ours.submit(True)]
        their_jobs = [theirs.submit(False), theirs.submit(True)]
        with working(other):
            done(other, "gpu")
        assert ran == ["other", "other"]
        assert states(their_jobs) == ["succeeded", "parked"]
        assert states(jobs) == ["waiting", "waiting"]
        assert (lattice.queues.depth("gpu").waiting, other.queues.depth("gpu").waiting) == (2, 0)
        assert (lattice.dead_letters("gpu").count(), other.dead_letters("gpu").count()) == (0, 1)
        for one, job in ((lattice, their_jobs[0]), (other, jobs[0])):
            for question in ("refresh", "result", "cancel"):
                with pytest.raises(LookupError):
                    getattr(one.job(job.id), question)()


@pytest.mark.parametrize(
    "name",
    ["a", "team/gpu", "../etc", "x" * 255, "Ünïcödé 队列 🚀", "' or 1=1 --", "%s", ".*|^$", " a b ", "a.DQx", "{0}"],
)
def test_any_printable_text_is_one_flat_name(sqlite_url: str, name: str) -> None:
    """L-23; security 6, 7"""
    with opened(sqlite_url) as lattice:

        @lattice.task(queue=name)
        def work() -> str:
            return name

        lattice.submit("team", "other")
        job = work.submit()
        with working(lattice):
            assert job.result(timeout=10) == name
        assert sorted(queue.name for queue in lattice.queues.list()) == sorted({"team", name})
        assert lattice.queues.depth("team").waiting == 1


def test_names_are_compared_byte_for_byte(lattice: Lattice) -> None:
    """L-20"""
    for name in ("gpu", "GPU", "gpu ", "gpü", "gpu\u0308"):
        lattice.queues.add(name)

    assert [queue.name for queue in lattice.queues.list()] == sorted(
        ["gpu", "GPU", "gpu ", "gpü", "gpu\u0308"], key=str.encode
    )


def test_a_pause_holds_for_every_worker_and_outlives_them(store_url: str) -> None:
    """C53"""
    ran: list[int] = []

    def declare(lattice: Lattice) -> Any:
        @lattice.task(queue="q")
        def note(number: int) -> None:
            ran.append(number)

        return note

    with opened(store_url) as lattice:
        note = declare(lattice)
        note.submit(0)
        with working(lattice):
            until(lambda: ran == [0])
            lattice.queues.pause("q")
            lattice.queues.pause("q")
            job = note.submit(1)
            assert lattice.queues.depth("q").waiting == 1
    with opened(store_url) as lattice, opened(store_url) as second:
        declare(lattice)
        declare(second)
        with working(lattice), working(second):
            other = lattice.task(queue="other")(lambda: None)
            until_state(other.submit(), "succeeded")
            assert lattice.job(job.id).refresh().state == "waiting"
            assert ran == [0]
            assert lattice.queues.resume("q").state == "active"
            until(lambda: ran == [0, 1])


def test_a_change_moves_its_instant_and_only_then(lattice: Lattice) -> None:
    before = lattice.queues.add("q")

    assert lattice.queues.resume("q").updated_at == before.updated_at
    paused = lattice.queues.pause("q")
    assert paused.updated_at > before.updated_at
    assert lattice.queues.pause("q") == paused
    assert paused.created_at == before.created_at


def test_a_queue_that_takes_nothing_refuses_within_a_second(lattice: Lattice) -> None:
    """L-80"""
    lattice.submit("q", "idle")
    change(lattice, "update lattice_queue set state = 'draining'")
    lattice.queues.get("q")

    with pytest.raises(QueueClosed, match="draining and takes no new invocations"):
        lattice.submit("q", "idle")
    with pytest.raises(Conflict):
        lattice.queues.pause("q")
    assert stored(lattice) == 1


def test_nothing_but_the_namespace_comes_before_a_name(lattice: Lattice) -> None:
    """L-24: neither Python, nor the command line, nor the store knows a prefix of queues."""
    columns = [field.name for table in (QueueRecord, QueuePicture) for field in fields(table)]
    calls = (Queues.add, Queues.get, Queues.list, Lattice.__init__, Lattice.task, Lattice.submit)
    arguments = [name for call in calls for name in signature(call).parameters]
    options = [name for verb in queues.commands.values() for option in verb.params for name in option.opts]
    if lattice.engine.dialect == "postgres":
        asked = "select column_name from information_schema.columns where table_name in ('lattice_queue', 'lattice_invocation')"
    else:
        asked = "select name from pragma_table_info('lattice_queue') union select name from pragma_table_info('lattice_invocation')"
    stored_columns = [name for (name,) in rows(lattice, asked)]

    assert min(map(len, (columns, arguments, options, stored_columns))) > 10
    names = [*columns, *arguments, *options, *stored_columns, *(field.name for field in fields(Settings))]
    assert [name for name in names if "prefix" in name] == []


def test_depth_counts_each_place(lattice: Lattice) -> None:
    """L-04"""
    for n in range(6):
        lattice.submit("q", "idle", (n,))
    lattice.submit("q", "idle", delay=timedelta(hours=1))
    claimer = Claimer(lattice)
    claimed = claimer.claim(4)
    claimer.settle((claimed[0], outcome(Kind.PARK)), (claimed[1], outcome(Kind.SUCCEED)))
    claimer.close()

    depth = lattice.queues.depth("q")

    assert (depth.waiting, depth.scheduled, depth.running, depth.parked, depth.held) == (2, 1, 2, 1, 0)
    assert rows(lattice, "select count(*) from lattice_invocation where state = 0") == [(5,)]

"""The store away at the worst moments: outcomes are kept, nobody dies, nobody is taken for dead."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from lattice_tasks.errors import StoreUnavailable
from lattice_tasks.store.session import sqlite
from lattice_tasks.tasks.invocation import State
from tests.paths.conftest import Begin
from tests.paths.fleet import Life, settled
from tests.paths.processes import children
from tests.servers import Postgres

LEASE_MS = 1_500


def end_at_once(server: Postgres) -> None:
    """What `pg_ctl stop -m immediate` does: no checkpoint, recovery at the next start."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    settled(lambda: server.pid is None, "the end of the server")


@contextmanager
def away(life: Life, server: Postgres | None) -> Iterator[None]:
    """Without the store: the server stopped, or the file locked by somebody who does not let go."""
    life.fault("the store is away")
    if server is not None:
        server.stop()
        try:
            yield
        finally:
            server.start()
        return
    stranger = sqlite.connect(life.store_url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        stranger.execute("begin immediate")
        yield
    finally:
        stranger.close()


@pytest.mark.parametrize("manner", ["fast", "immediate"])
def test_postgres_restarted_under_load(
    own_postgres: Postgres, own_postgres_url: str, rabbitmq_url: str, begin: Begin, manner: str
) -> None:
    """Faults 11: away for longer than a lease, no process dies, nobody is rescued wrongly, all finish."""
    life = begin(own_postgres_url, rabbitmq_url, lease_ms=LEASE_MS)
    pids = [life.worker().pid for _ in range(2)]
    with life.submitting() as stream:
        stream.more(100)
        life.fault("restart")
        stopped_at = time.monotonic()
        own_postgres.stop() if manner == "fast" else end_at_once(own_postgres)
        for pid in pids:
            life.event("store.unavailable", pid=pid)
        settled(lambda: time.monotonic() - stopped_at > 1.5 * LEASE_MS / 1_000, "more than a lease")
        own_postgres.start()
        stream.more(100)
    life.finished()

    for pid in pids:
        assert life.event("store.recovered", pid=pid)
    assert life.history.events("worker.lost") == []
    assert life.history.events("worker.declared_dead") == []
    assert sorted(life.workers()) == sorted(pids)
    assert {row.state for row in life.checked(budget=51).values()} == {State.SUCCEEDED}


def test_a_postgres_that_stalls_for_longer_than_a_lease_makes_nobody_dead(
    own_postgres: Postgres, own_postgres_url: str, rabbitmq_url: str, begin: Begin
) -> None:
    """No connection breaks, and yet no beat gets through: all stood still, so nobody can tell who died."""
    life = begin(own_postgres_url, rabbitmq_url, lease_ms=1_000)
    gate = life.gate()
    for number in range(3):
        life.worker(threads=1)
        life.submit("hold", f"task{number}", gate)
        life.started(f"task{number}")
    server = own_postgres.pid
    assert server is not None
    everything = [server, *children(server)]

    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    try:
        stalled_at = time.monotonic()
        settled(lambda: time.monotonic() - stalled_at > 1.5, "more than a lease")
    finally:
        for pid in everything:  # one session answers before the others
            os.kill(pid, signal.SIGCONT)
            threading.Event().wait(0.03)
    settled(lambda: time.monotonic() - stalled_at > 3.5, "time for a wrong burial")
    life.open(gate)
    life.finished()

    assert life.history.events("worker.lost") == []
    assert len(life.history.of("start")) == 3
    life.checked(budget=1)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.rabbitmq])])
def stoppable(request: pytest.FixtureRequest) -> tuple[Life, Postgres | None]:
    """A life, and the server to stop; None: the store is a file to be locked."""
    if request.param == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        return request.getfixturevalue("begin")(url, store_timeout_ms=200, lives_max_retries=1), None
    urls = [request.getfixturevalue(name) for name in ("own_postgres_url", "rabbitmq_url")]
    server = request.getfixturevalue("own_postgres")
    return request.getfixturevalue("begin")(*urls, lives_max_retries=1), server


def test_a_store_that_is_away_when_tasks_end_loses_no_outcome(stoppable: tuple[Life, Postgres | None]) -> None:
    """No middleware trap: the outcome is written when the store returns, and nothing is executed again for it."""
    life, server = stoppable
    gate = life.gate()
    life.worker(threads=4)
    life.submit("hold", "succeeds", gate)
    life.submit("flaky", "fails once", 1, gate)
    life.submit("reject", "rejects", gate)
    life.submit("fail", "fails", gate)
    names = ("succeeds", "fails once", "rejects", "fails")
    for name in names:
        life.started(name)

    with away(life, server):
        life.open(gate)
        for name in names:
            settled(lambda name=name: life.history.of("end", name=name), f"the end of {name}")
        life.event("store.unavailable")
    life.finished()

    executions = {name: [one["attempt"] for one in life.history.of("start", name=name)] for name in names}
    rows = life.checked(budget=2)
    assert executions == {"succeeds": [1], "fails once": [1, 2], "rejects": [1], "fails": [1, 2]}
    assert [rows[name].state for name in names] == [State.SUCCEEDED, State.SUCCEEDED, State.PARKED, State.PARKED]
    letters = {letter.task_id: letter for letter in life.lattice.dead_letters("lives").list()}
    assert (letters[rows["rejects"].id].reason, letters[rows["fails"].id].reason) == ("rejected", "unknown")
    assert "fails, as it shall" in letters[rows["fails"].id].error
    assert life.history.events("settle.refused") == []


def sessions(life: Life) -> list[int]:
    """The backends of this database but for the one that asks."""
    return [
        pid
        for (pid,) in life.store.fetch(
            "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
    ]


@pytest.mark.parametrize("cuts", [20, pytest.param(500, marks=pytest.mark.soak)])
def test_connections_cut_again_and_again_lose_nothing_and_do_not_pile_up(served: Begin, cuts: int) -> None:
    """C15, faults 11: whichever connection it is, the pump's, the heartbeat's or a submitter's."""
    life, chance = served(lease_ms=LEASE_MS), random.Random(7)
    pids = [life.worker().pid for _ in range(2)]
    with life.submitting() as stream:
        stream.more()
        before = len(sessions(life))
        for _ in range(cuts):
            life.fault("cut")
            found = sessions(life)
            for pid in chance.sample(found, (len(found) + 1) // 2):
                life.store.fetch("select pg_terminate_backend(%s)", pid)
            stream.more(3)
        settled(lambda: len(sessions(life)) >= 4, "new connections")
    life.finished()

    assert stream.errors == []
    assert len(life.history.events("store.unavailable")) >= cuts / 4
    assert len(sessions(life)) <= before + 1
    assert life.history.events("worker.lost") == []
    assert sorted(life.workers()) == sorted(pids)
    assert {row.state for row in life.checked(budget=51).values()} == {State.SUCCEEDED}


def test_a_session_killed_inside_a_transaction_is_reported_and_nothing_of_it_stands(
    own_postgres: Postgres, own_postgres_url: str, rabbitmq_url: str, begin: Begin
) -> None:
    """C36: never half replayed, and the next one works at once, also on connections that a restart has killed."""
    life = begin(own_postgres_url, rabbitmq_url)

    def submit_in_a_dying_session() -> None:
        with psycopg.connect(life.store_url) as connection, life.lattice.transaction(connection):
            life.lattice.submit("lives", "work", ("half",))
            life.store.fetch("select pg_terminate_backend(%s)", connection.info.backend_pid)
            life.lattice.submit("lives", "work", ("other half",))

    with pytest.raises(StoreUnavailable):
        submit_in_a_dying_session()
    threads = [threading.Thread(target=life.submit, args=("work", f"before{n}")) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    life.fault("restart")
    own_postgres.restart()

    life.submit("work", "after")
    life.worker()
    life.finished()

    assert set(life.checked(budget=1)) == {"after", *(f"before{n}" for n in range(10))}
    idle = life.store.fetch("select count(*) from pg_stat_activity where state like 'idle in transaction%%'")
    assert idle == [(0,)]


@pytest.mark.soak
@pytest.mark.parametrize("manner", ["fast", "immediate"])
def test_postgres_restarted_again_and_again(
    own_postgres: Postgres, own_postgres_url: str, rabbitmq_url: str, begin: Begin, manner: str
) -> None:
    """Faults 11, the long version: twenty restarts, back within ten seconds each time."""
    life = begin(own_postgres_url, rabbitmq_url, lease_ms=LEASE_MS)
    pids = [life.worker().pid for _ in range(2)]
    with life.submitting() as stream:
        for _ in range(20):
            stream.more(50)
            life.fault("restart")
            own_postgres.stop() if manner == "fast" else end_at_once(own_postgres)
            own_postgres.start()
            stream.more(1, patience_s=10)
    life.finished()

    assert len(life.history.events("store.unavailable")) >= 20
    assert sorted(life.workers()) == sorted(pids)
    assert {row.state for row in life.checked(budget=51).values()} == {State.SUCCEEDED}

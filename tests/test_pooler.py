"""Everything through PgBouncer in transaction mode with two server connections: the setting `pgbouncer` is all it takes."""

import os
import shutil
import threading
from collections.abc import Iterator

import psycopg
import pytest

from lattice_tasks import Lattice
from tests.pooler import PgBouncer
from tests.servers import Unavailable
from tests.services import home
from tests.working import opened, states, until_state, working

THREADS = 6


@pytest.fixture
def pooled_url(postgres_url: str) -> Iterator[str]:
    folder = home() / f"own-pgbouncer-{os.getpid()}"
    try:
        with PgBouncer(folder, postgres_url) as pooler:
            yield pooler.url
    except Unavailable as missing:
        pytest.fail(str(missing)) if os.environ.get("CI", "").lower() in ("1", "true", "yes") else pytest.skip(
            str(missing)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def busy(lattice: Lattice, place: int, errors: list[Exception]) -> None:
    """What clients do besides tasks, again and again: statements of all kinds, prepared ones would fail by now."""
    try:
        fifo, tree = lattice.fifo("things"), lattice.tree("stock")
        for number in range(25):
            fifo.enqueue([place, number])
            tree.set(f"{place}/{number}", number)
            assert tree.get(f"{place}/{number}") == number
            with tree.batch(f"{place}-{number}") as batch:
                batch.delete(f"{place}/{number}")
            assert fifo.try_dequeue() is not None
    except Exception as error:
        errors.append(error)


def test_a_life_behind_a_transaction_pooler(postgres_url: str, pooled_url: str) -> None:
    """C37: migration, submits, claims, retries, dead letters, replays, FIFO, trees and a caller's own transaction."""
    errors: list[Exception] = []
    with opened(pooled_url, pgbouncer=True, heartbeat_ms=100, lease_ms=5_000) as lattice:
        lattice.migrate()

        @lattice.task(queue="q", max_retries=1, min_backoff=10, max_backoff=20)
        def work(number: int) -> int:
            if number % 10 == 0 and not work.is_mended:
                raise ValueError(number)
            return number

        work.is_mended = False
        with working(lattice, threads=4):
            clients = [threading.Thread(target=busy, args=(lattice, place, errors)) for place in range(THREADS)]
            for client in clients:
                client.start()
            jobs = [work.submit(number, _key=f"k{number}") for number in range(100)]
            with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as connection:
                with lattice.transaction(connection):
                    jobs.append(work.submit(101))
            for client in clients:
                client.join(60)
            for job in jobs:
                until_state(job, "succeeded", "parked")
            work.is_mended = True
            shelf = lattice.dead_letters("q")
            assert [shelf.replay(letter.entry_id, wait=15).state for letter in shelf.list()] == ["succeeded"] * 10

        assert (errors, states(jobs), shelf.count()) == ([], ["succeeded"] * 101, 0)
        assert (lattice.fifo("things").count(), lattice.tree("stock").count()) == (0, 0)
        with psycopg.connect(postgres_url) as admin:
            found = admin.execute(
                """select count(*), count(*) filter (where state like 'idle in transaction%') from pg_stat_activity
                   where datname = current_database() and pid <> pg_backend_pid()"""
            ).fetchone()
            locks = admin.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone()
    assert found is not None
    assert found[0] <= 2
    assert (found[1], locks) == (0, (0,))

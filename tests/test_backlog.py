"""What a claim costs and brings beside very many finished, delayed and ready rows, with statistics of an empty store."""

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lattice_tasks import Lattice
from lattice_tasks.store import turns
from tests.claimers import Claimer
from tests.working import opened, rows, stored

FINISHED, DELAYED, READY = 1_000_000, 100_000, 100_000
_INVOCATION = """insert into lattice_invocation (id, queue_id, actor, body, priority, key, submitted_at, deadline_at, state,
        finished_at, attempt)
    select gen_random_uuid(), %s, 'idle', '{}', 0, null, n, null, %s, n, 0 from generate_series(%s::int, %s::int) n"""
_READY = """insert into lattice_ready (queue_id, seq, priority, attempt, flags)
    select queue_id, seq, priority, 0, 0 from lattice_invocation where state = 0 and submitted_at <= %s"""
_DELAYED = """insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
    select queue_id, 8000000000000000 + seq, seq, priority, 0, 0 from lattice_invocation where state = 0 and submitted_at > %s"""


@pytest.fixture
def lattice(postgres_url: str) -> Iterator[Lattice]:
    """Analysed while it was empty, and never again."""
    with opened(postgres_url) as lattice:
        lattice.migrate()
        with psycopg.connect(postgres_url, autocommit=True) as plain:
            for table in ("invocation", "ready", "scheduled", "lease"):
                plain.execute(f"alter table lattice_{table} set (autovacuum_enabled = false)")
            plain.execute("analyze")
        yield lattice


def fill(lattice: Lattice, queue_id: int, finished: int, ready: int, delayed: int) -> None:
    with psycopg.connect(lattice.settings.store_url, autocommit=True) as plain:
        plain.execute("set synchronous_commit = off")
        plain.execute(_INVOCATION, (queue_id, 1, 1, finished))
        plain.execute(_INVOCATION, (queue_id, 0, 1, ready + delayed))
        plain.execute(_READY, (ready,))
        plain.execute(_DELAYED, (ready,))


def pages(claimer: Claimer, limit: int, floor: int = 0) -> int:
    """How many pages a claim touches; it is undone."""
    session = claimer.session
    token = (claimer.worker_id, [claimer.queue.id], [limit], [floor], claimer.worker_id, 99, [claimer.queue.id])
    with psycopg.ClientCursor(session.raw) as cursor:
        cursor.execute("begin")
        (plan,) = (
            cursor.execute("explain (analyze, buffers, format json) " + turns._CLAIM.postgres, token).fetchone() or ()
        )
        cursor.execute("rollback")
    top: dict[str, Any] = plan[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


def p95_ms(claimer: Claimer, times: int = 100) -> float:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        assert len(claimer.claim(1)) == 1
        took.append(time.perf_counter() - started)
    return statistics.quantiles(took, n=20)[-1] * 1_000


def test_ten_who_claim_five_each_of_a_hundred_thousand_get_five_each(lattice: Lattice) -> None:
    """C41: exactly five, nobody's twice, and what is read does not grow with the backlog."""
    claimers = [Claimer(lattice) for _ in range(10)]
    lattice.submit_calls("q", "idle", [((n,), {}) for n in range(10)], {})
    few = pages(claimers[0], 5)
    fill(lattice, claimers[0].queue.id, 0, READY, 0)
    start, got = threading.Barrier(len(claimers)), {}

    def claim(claimer: Claimer) -> None:
        start.wait()
        got[claimer.worker_id] = [[one.seq for one in claimer.claim(5)] for _ in range(20)]

    threads = [threading.Thread(target=claim, args=(claimer,)) for claimer in claimers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    claims = [seqs for batches in got.values() for seqs in batches]
    assert [len(seqs) for seqs in claims] == [5] * 200
    assert len({seq for seqs in claims for seq in seqs}) == 1_000 == stored(lattice, "lease")
    assert pages(claimers[0], 5) < 3 * few + 50
    for claimer in claimers:
        claimer.close()


@pytest.mark.slow
def test_a_million_finished_and_a_hundred_thousand_delayed_slow_no_claim(lattice: Lattice) -> None:
    """C39: within twice what it costs in an empty store, by pages; and by the clock below 20 ms."""
    claimer = Claimer(lattice)
    lattice.submit_calls("q", "idle", [((n,), {}) for n in range(10)], {})
    alone = pages(claimer, 1)
    fill(lattice, claimer.queue.id, FINISHED, 200, DELAYED)

    beside = pages(claimer, 1)

    assert beside <= 2 * alone + 10
    assert p95_ms(claimer) < 20
    assert rows(lattice, "select count(*) from lattice_invocation")[0][0] > FINISHED
    claimer.close()


def test_a_transaction_that_stays_open_does_not_slow_claims_down(lattice: Lattice, postgres_url: str) -> None:
    """C40: what is claimed beneath an old snapshot leaves dead rows; a claim seeks past them from its floor."""
    claimer, floor = Claimer(lattice), 0
    fill(lattice, claimer.queue.id, 0, 40_000, 0)
    with psycopg.connect(postgres_url) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from lattice_ready")
        base = pages(claimer, 1)
        for _ in range(300):
            floor = claimer.claim(100, floor)[-1].seq + 1

        seeking, walking = pages(claimer, 1, floor), pages(claimer, 1)

    assert walking > 10 * base, "the snapshot kept nothing"
    assert seeking <= base + 10
    claimer.close()

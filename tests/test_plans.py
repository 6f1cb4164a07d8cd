"""Every hot statement uses its index, also before anybody has analysed the tables, and however large they are."""

import re
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from lattice_tasks import Lattice
from lattice_tasks.store import counters, invocations, settles, submits, turns, workers
from lattice_tasks.store.session import Statement
from lattice_tasks.tasks.settle import Kind
from tests.claimers import Claimer, outcome
from tests.plans import fill, generic_plan, spied
from tests.working import opened

ROWS = 100_000
LARGE = ("lattice_invocation", "lattice_ready", "lattice_scheduled", "lattice_lease")
FILL = [
    f"""insert into lattice_invocation (id, queue_id, actor, body, priority, key, submitted_at, deadline_at, state,
            finished_at, attempt)
        select gen_random_uuid(), 1 + n % 5, 'idle', '{{}}', 0, case when n % 10 = 0 then 'k' || n end, n, null,
            case when n <= {ROWS // 2} then 1 else 0 end, n, 0 from generate_series(1, {ROWS}) n""",
    f"""insert into lattice_ready (queue_id, seq, priority, attempt, flags)
        select 1 + n % 5, n, 0, 0, 0 from generate_series({ROWS // 2 + 1}, {ROWS * 3 // 4}) n""",
    f"""insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
        select 1 + n % 5, n, n, 0, 0, 0 from generate_series({ROWS * 3 // 4 + 1}, {ROWS * 9 // 10}) n""",
    f"""insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
        select 1 + n % 9, n, 1, 1 + n % 5, 0, 0, 0, 0 from generate_series({ROWS * 9 // 10 + 1}, {ROWS}) n""",
]


def live(lattice: Lattice) -> None:
    """One of everything that a busy system does all the time."""
    for n in range(5):
        lattice.queues.ensure(f"q{n}")
    queue = "q1"
    lattice.submit(queue, "idle")
    lattice.submit(queue, "idle", key="again")
    lattice.submit(queue, "idle", key="again")
    lattice.submit_calls(queue, "idle", [((1,), {}), ((2,), {})], {})
    lattice.submit_calls(queue, "idle", [((1,), {}), ((2,), {})], {"_priority": 3, "_deadline": None})
    lattice._submitter.submit([lattice._submitter.draft(queue, "idle", (n,), key=f"new{n}") for n in range(3)])
    claimer = Claimer(lattice, queue)
    claimed = claimer.claim(6)
    claimer.turn([(claimed[0].seq, claimer.batch, None)], limit=1)
    claimer.turn([(claimed[1].seq, 1, None)], watch=False)
    turns.turn(claimer.session, claimer.worker_id, 99, (), [turns.Want(claimer.queue.id + 1, 5, 0, refuses=True)], ())
    for one, kind in zip(claimed[2:], (Kind.RETRY, Kind.PARK, Kind.RELEASE, Kind.SUCCEED), strict=True):
        claimer.settle((one, outcome(kind)), batch=1)
    claimer.promote(10)
    claimer.beat()
    session = claimer.session
    workers.beat(session, claimer.worker_id, [one.seq for one in claimed])
    workers.my_leases(session, claimer.worker_id)
    workers.free_leases(session, claimer.worker_id, [(1, 1)])
    turns.mark_started(session, claimer.worker_id, 1, 1)
    invocations.prune(session, 0, 100, 10**15)
    counters.value(session, "k")
    lattice.job(claimed[0].id).refresh()
    lattice.job(claimed[3].id).cancel()
    lattice.submit(queue, "idle").cancel()
    lattice.submit(queue, "idle", delay=timedelta(hours=1)).cancel()
    workers.leave(session, claimer.worker_id)
    lattice.queues.depth(queue)
    claimer.close()


#: Reads that a person asks for, and looks that page through a table in its own order.
SELDOM = re.compile(r"count\(\*\) from lattice_(ready|scheduled|lease) where queue_id")


def test_on_postgres_no_hot_statement_reads_a_large_table_through(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C39, C41: without any statistics, with 100,000 rows, by the generic plan that workers use."""
    with opened(postgres_url) as lattice:
        spy = spied(lattice, live, monkeypatch)
        with psycopg.connect(postgres_url, autocommit=True) as plain:
            fill(plain, LARGE, FILL)
            assert plain.execute(
                "select count(*) from pg_stats where tablename = any(%s)", (list(LARGE),)
            ).fetchone() == (0,)
        bad = {}
        with closing(lattice.engine.open_session()) as session:
            for text, (_, params) in spy.seen.items():
                if not any(table in text for table in LARGE) or SELDOM.search(text):
                    continue
                plan = generic_plan(session.raw, text, params)
                if any(f"Seq Scan on {table}" in plan for table in LARGE):
                    bad[text] = plan

    assert len(spy.seen) > 25
    assert bad == {}, "\n\n".join(f"{text}\n{plan}" for text, plan in bad.items())


def test_on_sqlite_no_hot_statement_reads_a_large_table_through(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C39"""
    with opened(sqlite_url) as lattice:
        spy = spied(lattice, live, monkeypatch)
        bad = {}
        with lattice.engine.session() as session:
            for text, (statement, params) in spy.seen.items():
                if not any(table in text for table in LARGE) or SELDOM.search(text):
                    continue
                rows = session.raw.execute("explain query plan " + statement.sqlite, params).fetchall()
                plan = [row[3] for row in rows]
                if any(re.match(r"SCAN (lattice_(invocation|ready|scheduled|lease)|[irsl])\b", step) for step in plan):
                    bad[statement.sqlite] = "\n".join(plan)

    assert bad == {}, "\n\n".join(f"{text}\n{plan}" for text, plan in bad.items())


def test_every_statement_says_the_same_in_both_dialects() -> None:
    both = [
        (room.__name__, name, statement)
        for room in (counters, invocations, settles, submits, turns, workers)
        for name, statement in vars(room).items()
        if isinstance(statement, Statement)
    ]

    assert len(both) > 40
    for _, name, statement in both:
        assert "%s" not in statement.sqlite, name
        assert "{now}" not in statement.postgres + statement.sqlite, name

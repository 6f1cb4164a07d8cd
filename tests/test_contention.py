"""Postgres under clients that want the same thing at once, and under messages of any size."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from lattice_tasks import Lattice
from tests.claimers import Claimer
from tests.working import Events, heard, opened, rows, until

RACERS, ROUNDS = 10, 1_000


@pytest.fixture
def lattice(postgres_url: str) -> Iterator[Lattice]:
    with opened(postgres_url) as lattice:
        yield lattice


@pytest.mark.slow
@pytest.mark.recycled
def test_ten_racers_for_one_task_take_it_once_and_leave_no_lock(lattice: Lattice) -> None:
    """C38: a thousand times; no notice of a lock that somebody does not own, none of a session's locks afterwards."""
    notices: list[str] = []
    racers = [Claimer(lattice) for _ in range(RACERS)]
    for racer in racers:
        racer.session.raw.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    advisory = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"

    taken = []
    with ThreadPoolExecutor(RACERS) as pool:
        for _ in range(ROUNDS):
            lattice.submit("q", "idle")
            taken.append(sum(len(claimed) for claimed in pool.map(Claimer.claim, racers)))

    assert taken == [1] * ROUNDS
    assert rows(lattice, advisory) == [(0,)]
    assert notices == []
    assert len(rows(lattice, "select distinct worker_id from lattice_lease")) > 1, "one racer took everything"
    for racer in racers:
        racer.close()


def test_the_size_of_a_message_or_a_batch_is_nothing_to_the_notification(postgres_url: str, rabbitmq_url: str) -> None:
    """C43: a megabyte and five thousand at once are committed; each call wakes once, and nothing is NOTIFYed."""
    with (
        opened(postgres_url, broker_url=rabbitmq_url) as lattice,
        psycopg.connect(postgres_url, autocommit=True) as ear,
    ):
        events = heard(lattice)
        for channel in listened(lattice):
            ear.execute(f'listen "{channel}"')
        lattice.submit("q", "idle")
        until(lambda: sent(events) == 1, "the first wake-up")

        large = lattice.submit("q", "idle", ("x" * 1_000_000,))
        until(lambda: sent(events) == 2, "one wake-up for a megabyte")
        batch = lattice.submit_calls("q", "idle", [((number,), {}) for number in range(5_000)], {})
        until(lambda: sent(events) == 3, "one wake-up for the batch")
        lattice.submit("q", "idle")
        until(lambda: sent(events) >= 4, "the last wake-up")

        assert sent(events) == 4
        assert len({job.id for job in (large, *batch)}) == 5_001
        assert lattice.queues.depth("q").waiting == 5_003
        assert list(ear.notifies(timeout=0.2)) == []
    with closing(psycopg.connect(postgres_url)) as connection:
        size = connection.execute("select max(octet_length(body)) from lattice_invocation").fetchone()[0]
    assert size > 1_000_000


def sent(events: Events) -> int:
    return sum(fields["count"] for fields in events.of("wakeup.sent"))


def listened(lattice: Lattice) -> list[str]:
    """Whatever a system of this kind might call its channel."""
    tables = rows(lattice, "select tablename from pg_tables where schemaname = current_schema()")
    return ["lattice", "lattice_tasks", "wake", "q", *(name for (name,) in tables)]

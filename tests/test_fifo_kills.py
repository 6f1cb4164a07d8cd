"""Eight processes on one queue, killed at random: what they noted and what is left must add up."""

import random
import signal
import time
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from lattice_tasks.fifo import LatticeQueue
from lattice_tasks.store.engine import Engine, Statement
from tests.fifo_client import FATAL, enqueue_and_dequeue, start, work_through
from tests.fifos import NAME, head_of
from tests.history import History, Record
from tests.stores import fresh_engine
from tests.working import until

PROCESSES = 8


def begun(store_url: str, history: History) -> BaseProcess:
    client = start(enqueue_and_dequeue, store_url, history.path)
    until(lambda: any(one["pid"] == client.pid for one in history.records()), "a client to begin")
    return client


def kill_at_random(store_url: str, history: History, seconds: float) -> list[int]:
    """Let eight clients work for so long, killing one and starting another; the pids of those that were killed."""
    chance, killed = random.Random(7), []
    clients = [begun(store_url, history) for _ in range(PROCESSES)]
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        time.sleep(chance.uniform(0.01, 0.15))
        victim = clients.pop(chance.randrange(PROCESSES))
        victim.kill()
        victim.join(10)
        assert victim.exitcode == -signal.SIGKILL
        killed.append(victim.pid)
        clients.append(begun(store_url, history))
    for client in clients:
        client.terminate()
    for client in clients:
        client.join(30)
    assert [client.exitcode for client in clients] == [0] * PROCESSES
    return killed


def calls(history: History, before: str, after: str) -> tuple[list[tuple[Record, Record]], list[Record]]:
    """Each call that returned, as what was noted before and after it; and those that did not."""
    returned, open_calls = [], {}
    for note in history.records():
        if note["what"] == before:
            open_calls[note["pid"]] = note
        elif note["what"] == after:
            returned.append((open_calls.pop(note["pid"]), note))
    return returned, list(open_calls.values())


def follow_each_other(returned: Iterable[tuple[Record, Record]]) -> bool:
    """Whether of two calls, one of which ended before the other began, the first always had the lower id."""
    begins = sorted(((before["at"], after["entry_id"]) for before, after in returned))
    ends = sorted(((after["at"], after["entry_id"]) for _, after in returned))
    highest, done = 0, 0
    for began_at, entry_id in begins:
        while done < len(ends) and ends[done][0] < began_at:
            highest = max(highest, ends[done][1])
            done += 1
        if highest >= entry_id:
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_killed_clients_lose_at_most_what_they_were_taking(store_url: str, tmp_path: Path, seconds: float) -> None:
    """Q-01, Q-02, Q-30, Q-34, Q-40, Q-49, A-07: ids rise and are issued once; no entry leaves twice or out of order."""
    history = History(tmp_path / "history")
    with fresh_engine(store_url) as engine:
        killed = kill_at_random(store_url, history, seconds)
        queue = LatticeQueue[list[int]](engine, NAME)
        left = queue.list()
        assert queue.count() == len(left)

    enqueued, unanswered = calls(history, "enqueuing", "enqueued")
    dequeued, taking = calls(history, "dequeuing", "dequeued")
    taken = [pair for pair in dequeued if pair[1]["entry_id"] is not None]
    assert len(killed) >= 4 * seconds
    assert {note["pid"] for note in (*unanswered, *taking)} <= set(killed)
    assert unanswered, "no kill hit an enqueue"
    assert taking, "no kill hit a dequeue"
    assert len(taken) > 100

    issued = {after["entry_id"]: after["value"] for _, after in enqueued}
    gone = [(after["entry_id"], after["value"]) for _, after in taken]
    seen = gone + [(entry.entry_id, entry.value) for entry in left]
    assert len(issued) == len(enqueued), "an id was issued twice"
    assert len({entry_id for entry_id, _ in seen}) == len(seen), "an entry left twice"
    unknown = [(entry_id, value) for entry_id, value in seen if issued.get(entry_id) != value]
    assert {tuple(value) for _, value in unknown} <= {tuple(note["value"]) for note in unanswered}
    assert not {entry_id for entry_id, _ in unknown} & issued.keys(), "an id was issued twice"
    lost = issued.keys() - {entry_id for entry_id, _ in seen}
    assert len(lost) <= len(taking)

    assert follow_each_other(enqueued)
    assert follow_each_other(taken)
    assert all(entry.entry_id > max(entry_id for entry_id, _ in gone) for entry in left)
    assert all(one.entry_id < other.entry_id for one, other in pairwise(left))


@pytest.mark.slow
def test_order_holds_through_eight_claimers_failures_and_a_kill(store_url: str, tmp_path: Path) -> None:
    """C31: what is done in the transaction that took it is done in the order of the queue, each entry once: one that
    fails, or whose process is killed, is the head again, and the others have waited for it."""
    history = History(tmp_path / "history")
    with fresh_engine(store_url) as engine:
        make_table(engine)
        LatticeQueue[int](engine, NAME).enqueue_many(range(1_000))

        clients = [start(work_through, store_url, history.path) for _ in range(PROCESSES)]
        (holding,) = until(lambda: history.of("holding"), "a client to hold an entry")
        (victim,) = [client for client in clients if client.pid == holding["pid"]]
        victim.kill()
        for client in clients:
            client.join(60)

        with engine.session() as session:
            done = session.fetch(Statement("select entry_id, value from fifo_done order by place"))
        assert (head_of(engine).count, head_of(engine).next_id) == (0, 1_001)
    assert sorted(client.exitcode for client in clients) == [-signal.SIGKILL] + [0] * (PROCESSES - 1)
    assert len(history.of("failed")) > 50
    assert len({note["pid"] for note in history.of("failed")}) > 1
    assert done == [(value + 1, value) for value in range(1_000)]
    assert holding["entry_id"] == FATAL + 1


def make_table(engine: Engine) -> None:
    table = Statement(
        "create table fifo_done (place bigserial primary key, entry_id bigint not null, value bigint not null)",
        "create table fifo_done (place integer primary key, entry_id bigint not null, value bigint not null)",
    )
    with engine.session() as session:
        session.execute(table)

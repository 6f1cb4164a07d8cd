"""Connections and what shares them: short-lived threads, forked children, a pool that is full."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

import psutil
import pytest

from lattice_tasks.errors import StoreUnavailable
from lattice_tasks.tasks.invocation import State
from tests.paths.conftest import Begin
from tests.paths.fleet import Life, settled


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run it in so many threads of one use each; what they raised."""
    raised: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def connections(life: Life) -> Counter[str]:
    """How many connections this process has to each server, and files open on the store."""
    ports = {urlsplit(url).port: name for name, url in (("store", life.store_url), ("broker", life.broker_url)) if url}
    me = psutil.Process()
    open_now = Counter(ports[one.raddr.port] for one in me.net_connections() if one.raddr and one.raddr.port in ports)
    open_now["files"] = sum(file.path.endswith("lattice.db") for file in me.open_files())
    open_now["descriptors"] = me.num_fds()
    return open_now


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.soak)])
def test_threads_that_submit_once_leave_no_connection_behind(anywhere: Begin, count: int) -> None:
    """C33, C35: at most the pool stays, and nothing of it in use; closing the lattice leaves nothing at all."""
    life = anywhere(pool_size=5)
    life.lattice.close()
    before = connections(life)
    errors = in_threads(count, lambda number: life.submit("work", f"task{number}"))

    pool = life.lattice.engine.database
    after = connections(life)
    life.lattice.close()

    assert errors == []
    assert len(pool._in_use) == 0
    assert after["store"] - before["store"] <= 5
    assert after["files"] - before["files"] <= 5
    assert after["broker"] - before["broker"] <= 1
    settled(lambda: connections(life) == before, "everything closed")
    assert len(life.checked(is_over=False)) == count


def test_threads_that_raise_give_their_connection_back(anywhere: Begin) -> None:
    """C35: a third of the threads fails in the middle of using the store."""
    life = anywhere(pool_size=5)

    def use(number: int) -> None:
        with life.lattice.engine.session() as session, session.transaction():
            life.lattice.queues.get("lives")
            if number % 3 == 0:
                raise ZeroDivisionError

    life.lattice.queues.add("lives")
    errors = in_threads(200, use)

    assert Counter(type(error) for error in errors) == {ZeroDivisionError: 67}
    assert len(life.lattice.engine.database._in_use) == 0
    life.submit("work", "after")


def test_a_full_pool_is_waited_for_and_then_told_of(anywhere: Begin) -> None:
    """C35: a bounded wait and a clear error; whoever had a connection is not harmed."""
    life = anywhere(pool_size=3, store_timeout_ms=500)
    life.submit("work", "before")
    release, inside = threading.Event(), threading.Semaphore(0)

    def hold(_number: int) -> None:
        with life.lattice.engine.session():
            inside.release()
            release.wait(10)

    holders = threading.Thread(target=in_threads, args=(3, hold))
    holders.start()
    for _ in range(3):
        assert inside.acquire(timeout=10)
    asked_at = time.monotonic()
    with pytest.raises(StoreUnavailable, match="pool_size=3"):
        life.submit("work", "refused")
    waited_s = time.monotonic() - asked_at
    release.set()
    holders.join()
    life.submit("work", "after")

    assert 0.4 < waited_s < 2.5
    assert {row.name for row in life.store.rows()} == {"before", "after"}


def test_a_worker_whose_tasks_hold_the_whole_pool_still_beats_and_settles(served: Begin) -> None:
    """C35: the heartbeat and the pump have connections of their own."""
    life = served(lease_ms=1_000)
    gate = life.gate()
    hog = life.worker(threads=2, LATTICE_POOL_SIZE="1", LATTICE_STORE_TIMEOUT_MS="500")
    life.submit("hog", "hog", gate)
    life.started("hog")
    life.worker(threads=1)  # would bury it
    hogged_at = time.monotonic()
    settled(lambda: time.monotonic() - hogged_at > 3, "three leases")
    life.open(gate)
    life.finished()

    assert life.history.events("worker.lost") == []
    (start,) = life.started("hog")
    assert start["pid"] == hog.pid
    life.checked(budget=1)


def test_forked_children_and_their_parent_all_submit(anywhere: Begin) -> None:
    """C34: connections opened before the fork stay the parent's, and survive the children's ends."""
    life = anywhere()
    life.worker()

    program = life.run([sys.executable, "-m", "tests.paths.apps.forking", "4", "100"])

    assert program.wait() == 0, program.text()[-3_000:]
    life.finished()
    rows = life.checked(budget=1)
    assert len(rows) == 1 + 5 * 100 + 1
    assert {row.state for row in rows.values()} == {State.SUCCEEDED}
    assert {one["pid"] for one in life.history.of("accepted")} >= {program.pid}
    assert len({one["pid"] for one in life.history.of("accepted")}) == 5
    assert life.history.events("broker.unavailable") == []
    assert program.text() == ""


@pytest.mark.parametrize("children", [10, pytest.param(200, marks=pytest.mark.soak)])
def test_children_forked_while_other_threads_submit_are_not_stuck(anywhere: Begin, children: int) -> None:
    """C34: whatever lock another thread held at that moment, the child does not wait for it."""
    life = anywhere()

    program = life.run([sys.executable, "-m", "tests.paths.apps.forking", str(children), "3", "busy"])

    assert program.wait(120) == 0, program.text()[-3_000:]
    rows = life.checked(is_over=False)
    assert sum(name.startswith("child") for name in rows) == children * 3
    assert sum(name.startswith("thread") for name in rows) > 0


def test_a_forked_child_goes_on_when_its_parent_closes_the_store(anywhere: Begin) -> None:
    """C34: on SQLite it used to inherit its parent's locks, and its commits went to a file that was deleted."""
    life = anywhere()

    program = life.run([sys.executable, "-m", "tests.paths.apps.fork_and_close", "idle"])

    assert program.wait() == 0, program.text()
    assert set(life.checked(is_over=False)) == {"parent", "child before", "child after"}


def test_a_child_forked_in_the_middle_of_using_a_sqlite_file_is_told_so(sqlite_url: str, begin: Begin) -> None:
    life = begin(sqlite_url)

    program = life.run([sys.executable, "-m", "tests.paths.apps.fork_and_close", "busy"])

    assert program.wait() == 0, program.text()
    assert set(life.checked(is_over=False)) == {"parent", "parent after"}

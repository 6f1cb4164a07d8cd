"""Workers that only seem dead: frozen beyond their lease, or too busy to be quick."""

import time
from contextlib import ExitStack

import pytest

from lattice_tasks import Lattice
from lattice_tasks.errors import SettingsError
from lattice_tasks.tasks.invocation import State
from tests.paths.conftest import Begin
from tests.paths.fleet import Life, settled
from tests.paths.processes import Process


def frozen_while_it_runs(life: Life, name: str, gate: str) -> tuple[Process, Process]:
    """A worker frozen in the middle of a task, and the one that took the task over and runs it now."""
    zombie = life.worker(threads=1)
    life.submit("hold", name, gate)
    life.started(name)
    heir = life.worker(threads=1)
    life.freeze(zombie)
    life.event("worker.lost", pid=heir.pid)
    assert [one["pid"] for one in life.started(name, 2)] == [zombie.pid, heir.pid]
    return zombie, heir


def test_a_frozen_worker_comes_back_too_late_and_completes_nothing(anywhere: Begin) -> None:
    """Faults 4: the task was completed by another meanwhile; the late settle is refused and counted."""
    life = anywhere(lease_ms=1_000)
    gate = life.gate()
    zombie, heir = frozen_while_it_runs(life, "late", gate)
    life.open(gate)
    life.finished()

    zombie.thaw()

    refused = life.event("settle.refused", pid=zombie.pid)
    assert len(refused) == 1
    row = life.checked()["late"]
    (ended,) = life.history.of("end", name="late", pid=heir.pid)
    assert (row.state, row.result, row.attempt) == (State.SUCCEEDED, ended["token"], 1)


def test_a_frozen_worker_that_ends_first_completes_nothing_either(anywhere: Begin) -> None:
    """I8: it comes back while its heir still runs, and must not take the result from the heir's lease."""
    life = anywhere(lease_ms=1_000)
    zombie_gate, heir_gate = life.gate("zombie"), life.gate("heir")
    zombie = life.worker(threads=1, LIVES_GATE=zombie_gate)
    life.submit("hold", "early", "LIVES_GATE")
    life.started("early")
    heir = life.worker(threads=1, LIVES_GATE=heir_gate)
    life.freeze(zombie)
    life.started("early", 2)

    life.open(zombie_gate)
    zombie.thaw()
    life.event("settle.refused", pid=zombie.pid)
    still_open = life.store.rows()[0].state
    life.open(heir_gate)
    life.finished()

    assert still_open is State.RUNNING
    (ended,) = life.history.of("end", name="early", pid=heir.pid)
    assert life.checked()["early"].result == ended["token"]


def test_a_frozen_worker_takes_a_new_incarnation_and_works_again(anywhere: Begin) -> None:
    """C11: the same process, the same name, and yet another incarnation that is credited with nothing of the old."""
    life = anywhere(lease_ms=1_000)
    gate = life.gate()
    zombie, heir = frozen_while_it_runs(life, "first", gate)
    life.open(gate)
    life.finished()
    zombie.thaw()
    life.event("worker.declared_dead", pid=zombie.pid)
    first, second = life.event("worker.started", 2, pid=zombie.pid)
    assert heir.stop() == 0

    life.submit("work", "second")
    life.finished()

    assert second["fields"]["worker"] not in (first["fields"]["worker"], first["fields"]["worker"] + 1)
    assert life.started("second")[0]["pid"] == zombie.pid
    life.checked()


def test_an_incarnation_never_gets_the_number_of_a_dead_one(anywhere: Begin) -> None:
    """C11: the newest worker is buried and another one registers; the frozen one must not be taken for it."""
    life = anywhere(lease_ms=1_000)
    gate, watch = life.gate(), life.gate("watch")
    observer = life.worker(threads=1)
    life.submit("hold", "watch", watch)
    life.started("watch")
    zombie = life.worker(threads=1)
    life.submit("hold", "late", gate)
    life.started("late")
    life.freeze(zombie)
    life.event("worker.lost", pid=observer.pid)

    heir = life.worker(threads=1)
    assert life.started("late", 2)[1]["pid"] == heir.pid
    zombie.thaw()
    life.event("worker.declared_dead", pid=zombie.pid)
    life.open(gate)
    life.open(watch)
    life.finished()

    assert len({one["fields"]["worker"] for one in life.history.events("worker.started")}) == 4
    (ended,) = life.history.of("end", name="late", pid=heir.pid)
    assert life.checked()["late"].result == ended["token"]


def test_workers_that_were_all_frozen_together_bury_nobody(served: Begin) -> None:
    """Design: a suspended machine rescues nobody wrongly; who has stood still himself cannot say that others did."""
    life = served(lease_ms=1_000)
    gate = life.gate()
    workers = [life.worker(threads=1) for _ in range(3)]
    for number in range(3):
        life.submit("hold", f"task{number}", gate)
        life.started(f"task{number}")

    for worker in workers:
        worker.freeze()
    frozen_at = time.monotonic()
    settled(lambda: time.monotonic() - frozen_at > 1.8, "more than a lease")
    for number, worker in enumerate(workers):  # one wakes before the others
        worker.thaw()
        settled(lambda passed=2 + 0.2 * number: time.monotonic() - frozen_at > passed, "the next to wake")
    settled(lambda: time.monotonic() - frozen_at > 3.5, "time for a wrong burial")
    life.open(gate)
    life.finished()

    assert life.history.events("worker.lost") == []
    assert len(life.history.of("start")) == 3
    life.checked(budget=1)


def test_a_task_of_pure_cpu_beyond_the_lease_runs_once(anywhere: Begin) -> None:
    """C09: rescue is by liveness, not by age."""
    life = anywhere(lease_ms=1_000)
    for _ in range(2):
        life.worker(threads=2)

    for name in ("one", "two"):
        life.submit("spin", name, 2_500)
    life.finished()

    assert life.history.events("worker.lost") == []
    assert all(len(life.started(name)) == 1 for name in ("one", "two"))
    ran_s = [
        end["at"] - start["at"] for start, end in zip(life.history.of("start"), life.history.of("end"), strict=True)
    ]
    assert max(ran_s) > 2
    life.checked(budget=1)


def test_busy_writers_of_one_file_do_not_silence_a_heartbeat(sqlite_url: str, begin: Begin) -> None:
    """C09: four threads that write all the time leave gaps of microseconds; a beat, a claim and a submit find them."""
    life = begin(sqlite_url, lease_ms=1_000)
    for _ in range(2):
        life.worker(threads=1)
    with ExitStack() as stack:
        streams = [stack.enter_context(life.submitting(every_s=0, ms=0, name=f"busy{n}-")) for n in range(4)]
        calm = stack.enter_context(life.submitting(every_s=0.05, name="calm"))
        calm.more(40)

    assert sum(stream.accepted for stream in streams) > 500
    assert calm.slowest_s() < 1
    assert life.history.events("worker.lost") == []
    assert life.history.of("start")


@pytest.mark.parametrize(("heartbeat_ms", "lease_ms"), [(2_000, 2_000), (5_000, 2_000), (700, 2_000)])
def test_a_heartbeat_slower_than_a_third_of_the_lease_is_refused(heartbeat_ms: int, lease_ms: int) -> None:
    """C09: a healthy worker would be taken for dead."""
    with pytest.raises(SettingsError, match="a third of lease_ms"):
        Lattice("sqlite:///unused.db", set_default=False, heartbeat_ms=heartbeat_ms, lease_ms=lease_ms)


@pytest.mark.soak
def test_many_frozen_workers_complete_nothing_late(anywhere: Begin) -> None:
    """Faults 4, the long version: all late completions are refused."""
    life, rounds = anywhere(lease_ms=1_000), 40
    heir = life.worker(threads=4)
    for number in range(rounds):
        gate, name = life.gate(f"gate{number}"), f"late{number}"
        zombie = life.worker(threads=1)
        life.submit("hold", name, gate)
        frozen = zombie if life.started(name)[0]["pid"] == zombie.pid else heir
        life.freeze(frozen)
        life.started(name, 2)
        life.open(gate)
        life.finished()
        frozen.thaw()
        life.event("settle.refused", number + 1)
        zombie.stop()
    life.checked()

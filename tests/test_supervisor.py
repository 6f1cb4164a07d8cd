"""The parent of the worker processes, over real processes that do nothing but live and die."""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice_tasks.broker.supervisor import pause_s

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 20.0


class Host:
    """A supervisor in a process of its own, and the events it prints."""

    def __init__(self, folder: Path, mode: str = "good", processes: int = 2, kill_after_s: float = 15.0) -> None:
        self.folder = folder
        self.set_mode(mode)
        command = [sys.executable, "-m", "tests.supervised", "host", str(folder), str(processes), str(kill_after_s)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line) | {"at": time.monotonic()})

    def set_mode(self, mode: str) -> None:
        (self.folder / "new").write_text(mode)
        (self.folder / "new").rename(self.folder / "mode")

    def next(self, name: str) -> dict[str, Any]:
        """The next event of this name; the others are only remembered."""
        while True:
            event = self._events.get(timeout=PATIENCE_S)
            self.seen.append(event)
            if event["event"] == name:
                return event

    def up(self, count: int) -> list[int]:
        """The pids of the next children, once each has said that it works."""
        pids = [self.next("supervisor.child_started")["pid"] for _ in range(count)]
        until(lambda: all((self.folder / str(pid)).exists() for pid in pids))
        return pids

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        threading.Event().wait(0.01)


def is_alive(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except FileNotFoundError:
        return False


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Any]:
    started: list[Host] = []

    def start(**options: Any) -> Host:
        started.append(Host(tmp_path, **options))
        return started[-1]

    yield start
    for host in started:
        if host.process.poll() is None:
            host.process.kill()
        host.process.communicate()


def test_a_killed_child_is_replaced_and_the_others_go_on(hosts: Any) -> None:
    """C56: one kill -9 neither ends the group nor goes unnoticed."""
    host = hosts(processes=3)
    pids = host.up(3)

    os.kill(pids[1], signal.SIGKILL)
    died = host.next("supervisor.child_died")
    (replacement,) = host.up(1)

    assert (died["pid"], died["slot"], died["exit_code"]) == (pids[1], 1, -9)
    assert all(is_alive(pid) for pid in (pids[0], pids[2], replacement))
    assert host.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("mode", "code"), [("broken", 78), ("offline", 69)])
def test_a_first_child_that_cannot_start_ends_the_command_with_one_line(hosts: Any, mode: str, code: int) -> None:
    host = hosts(mode=mode, processes=4)

    assert host.process.wait(PATIENCE_S) == code
    assert host.process.stderr.read() == f"it is {mode}\n"
    host.next("supervisor.child_started")
    with pytest.raises(queue.Empty):
        host._events.get_nowait()


def test_once_up_a_child_that_cannot_start_is_tried_again(hosts: Any) -> None:
    host = hosts()
    pids = host.up(2)
    host.set_mode("offline")

    os.kill(pids[0], signal.SIGKILL)
    assert host.next("supervisor.child_died")["exit_code"] == -9
    died = host.next("supervisor.child_died")
    host.set_mode("good")
    host.up(1)

    assert (died["exit_code"], died["error"]) == (69, "it is offline")
    assert is_alive(pids[1])
    assert host.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_told_to_stop_it_stops_its_children_first(hosts: Any, number: int, code: int) -> None:
    host = hosts()
    pids = host.up(2)

    assert host.end(number) == code
    assert not any(is_alive(pid) for pid in pids)


def test_a_second_signal_kills_at_once(hosts: Any) -> None:
    host = hosts(mode="stubborn")
    pids = host.up(2)

    host.process.send_signal(signal.SIGTERM)
    host.next("supervisor.stopping")

    assert host.end(signal.SIGTERM) == 1
    assert not any(is_alive(pid) for pid in pids)


def test_a_child_that_outlasts_its_time_to_stop_is_killed(hosts: Any) -> None:
    host = hosts(mode="stubborn", processes=1, kill_after_s=0.2)
    pids = host.up(1)

    assert host.end(signal.SIGTERM) == 1
    assert host.next("supervisor.child_killed")["pid"] == pids[0]


def test_a_child_that_leaves_by_itself_is_not_replaced(hosts: Any) -> None:
    host = hosts()
    pids = host.up(2)

    for pid in pids:
        os.kill(pid, signal.SIGUSR1)

    assert host.process.wait(PATIENCE_S) == 0
    assert {host.next("supervisor.child_left")["pid"] for _ in pids} == set(pids)


def test_children_that_keep_dying_young_are_started_ever_more_slowly(hosts: Any) -> None:
    host = hosts(mode="dying", processes=1)

    times = []
    for _ in range(3):
        started = host.next("supervisor.child_started")["at"]
        times.append((started, host.next("supervisor.child_died")["at"]))

    pauses = [after[0] - before[1] for before, after in itertools.pairwise(times)]
    assert pauses[0] >= 0.35
    assert pauses[1] >= 0.7
    assert host.end(signal.SIGTERM) == 0


def test_pauses_grow_to_ten_seconds_and_are_spread() -> None:
    assert [pause_s(deaths, 0.5) for deaths in range(1, 8)] == [0.5, 1, 2, 4, 8, 10, 10]
    assert pause_s(10_000, 0.5) == 10
    assert (pause_s(1, 0.0), pause_s(1, 1.0)) == (0.375, 0.625)


def test_a_rolling_restart_replaces_one_after_the_other(hosts: Any) -> None:
    host = hosts()
    before = host.up(2)

    host.process.send_signal(signal.SIGHUP)
    first, second = host.up(1), host.up(1)

    until(lambda: not any(is_alive(pid) for pid in before))
    assert all(is_alive(pid) for pid in (*first, *second))
    assert host.end(signal.SIGTERM) == 0


def test_a_rolling_restart_into_a_broken_app_changes_nothing(hosts: Any) -> None:
    host = hosts()
    before = host.up(2)
    host.set_mode("broken")

    host.process.send_signal(signal.SIGHUP)
    failed = host.next("supervisor.reload_failed")

    assert (failed["exit_code"], failed["error"]) == (78, "it is broken")
    assert all(is_alive(pid) for pid in before)
    assert host.end(signal.SIGTERM) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel tells on Linux only")
def test_children_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, time\n"
        "from lattice_tasks.broker.worker_child import end_with\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    end_with(os.getppid())\n"
        "    print(os.getpid(), flush=True)\n"
        "    signal.pause()\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())

    parent.kill()
    parent.wait()

    until(lambda: not is_alive(child))
    parent.stdout.close()


def test_a_parent_that_is_gone_already_is_noticed() -> None:
    script = "from lattice_tasks.broker.worker_child import end_with; end_with(parent_pid=1_000_000_000)"

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)

    assert done.returncode == -signal.SIGTERM

"""`lattice-tasks worker` and `dev`: real processes over a real app file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lattice_tasks import Lattice
from lattice_tasks.broker.process import broker_of

from .test_entry import started

PATIENCE_S = 30.0
APP = """
import os, time
from lattice_tasks import Lattice

lattice = Lattice()

@lattice.task(queue="sums")
def add(left, right=1):
    return left + right

@lattice.task(queue="sums")
def pid():
    return os.getpid()

@lattice.task(queue="naps")
def nap(seconds):
    time.sleep(seconds)
"""


class Program:
    """A worker command in a folder with `tasks.py`, its output in files so that no pipe fills."""

    def __init__(self, folder: Path, store_url: str, *arguments: str) -> None:
        self._err = folder / "err"
        self.process = started(
            "--store-url", store_url, *arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=self._err.open("w")
        )

    @property
    def err(self) -> str:
        return self._err.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


# The supervisor knows no store: what is said here once holds on both engines.
@pytest.fixture
def lattice(sqlite_url: str, tmp_path: Path) -> Iterator[Lattice]:
    (tmp_path / "tasks.py").write_text(APP)
    lattice = Lattice(store_url=sqlite_url, set_default=False, log_level="critical")
    yield lattice
    lattice.close()


@pytest.fixture
def start(tmp_path: Path, sqlite_url: str) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(*arguments: str, url: str = sqlite_url) -> Program:
        programs.append(Program(tmp_path, url, *arguments))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return " Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except FileNotFoundError:
        return False


def test_a_worker_runs_the_tasks_and_stops_in_good_order(lattice: Lattice, start: Callable[..., Program]) -> None:
    job = lattice.submit("sums", "add", [40], {"right": 2})

    program = start("worker", "tasks", "--processes", "2", "--threads", "1")

    assert job.result(timeout=PATIENCE_S) == 42
    assert program.end() == 0, program.err


@pytest.mark.parametrize("app", ["tasks.py", "tasks:lattice", "./tasks.py"])
def test_an_app_is_a_module_an_attribute_or_a_file(tmp_path: Path, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tasks", raising=False)

    broker = broker_of(app)

    assert set(broker.actors) == {"add", "pid", "nap"}
    monkeypatch.delitem(sys.modules, "tasks")


def test_a_file_of_the_app_may_be_called_like_one_of_pythons(
    lattice: Lattice, start: Callable[..., Program], tmp_path: Path
) -> None:
    for name in ("queue", "selectors", "email"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is not the one you want')")

    program = start("worker", "tasks", "--processes", "1", "--threads", "1")

    assert lattice.submit("sums", "add", [1]).result(timeout=PATIENCE_S) == 2
    assert program.end() == 0, program.err


def test_off_a_terminal_every_log_line_is_json(lattice: Lattice, start: Callable[..., Program]) -> None:
    program = start("worker", "tasks", "--processes", "1", "--threads", "1")

    job = lattice.submit("sums", "add", ["\x1b[31m"])
    until(lambda: job.refresh().state != "waiting" and "Failed to process" in program.err)

    assert program.end() == 0
    assert all(json.loads(line)["event"] for line in program.err.splitlines())
    assert "\x1b" not in program.err


def test_ctrl_c_ends_it_with_130(lattice: Lattice, start: Callable[..., Program]) -> None:
    program = start("worker", "tasks", "--processes", "2", "--threads", "1")
    lattice.submit("sums", "add", [1]).result(timeout=PATIENCE_S)

    assert program.end(signal.SIGINT) == 130
    assert "Traceback" not in program.err


def test_a_killed_process_is_replaced_and_the_work_goes_on(lattice: Lattice, start: Callable[..., Program]) -> None:
    """C56: nothing else ends, and a replacement takes over."""
    program = start("worker", "tasks", "--processes", "1", "--threads", "1")
    first = lattice.submit("sums", "pid").result(timeout=PATIENCE_S)

    os.kill(first, signal.SIGKILL)
    second = lattice.submit("sums", "pid").result(timeout=PATIENCE_S)

    assert first != second
    assert "supervisor.child_died" in program.err
    assert program.end() == 0, program.err


def test_what_a_killed_process_ran_starts_again_long_before_its_lease_ends(
    lattice: Lattice, start: Callable[..., Program]
) -> None:
    """C10: its supervisor saw it end, so nobody waits for its silence; the lease here is the default, 30 s."""
    start("worker", "tasks", "--processes", "1", "--threads", "1")
    killer = lattice.submit("sums", "pid").result(timeout=PATIENCE_S)
    job = lattice.submit("naps", "nap", [0.5])
    until(lambda: job.refresh().state == "running")

    os.kill(killer, signal.SIGKILL)

    job.result(timeout=10)
    assert job.refresh().attempt == 1, "a lease alone on a dead worker is charged"


def test_children_do_not_outlive_a_supervisor_that_was_killed(lattice: Lattice, start: Callable[..., Program]) -> None:
    program = start("worker", "tasks", "--processes", "1", "--threads", "1")
    child = lattice.submit("sums", "pid").result(timeout=PATIENCE_S)

    program.process.kill()

    until(lambda: not is_alive(child))


def test_only_the_queues_that_were_named_are_served(lattice: Lattice, start: Callable[..., Program]) -> None:
    other = lattice.submit("naps", "nap", [0])
    program = start("worker", "tasks", "--queues", "sums, more", "--processes", "1", "--threads", "1")

    assert lattice.submit("sums", "add", [1]).result(timeout=PATIENCE_S) == 2
    assert other.refresh().state == "waiting"
    assert program.end() == 0, program.err


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("no_such_module", "No module named 'no_such_module'"),
        ("missing.py", "there is no file missing.py"),
        ("tasks:nothing", "no attribute 'nothing'"),
        ("broken.py", "ZeroDivisionError: division by zero"),
        ("empty.py", "has no Lattice"),
        ("script.py", "SystemExit: 4"),
    ],
)
def test_an_app_that_cannot_be_imported_is_one_line_and_78(
    lattice: Lattice, start: Callable[..., Program], tmp_path: Path, app: str, told: str
) -> None:
    (tmp_path / "broken.py").write_text("import tasks\n1 / 0\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "script.py").write_text("raise SystemExit(4)")

    program = start("-q", "worker", app, "--processes", "3")

    assert program.process.wait(PATIENCE_S) == 78
    assert told in program.err
    assert len(program.err.splitlines()) == 1, program.err


def test_a_store_that_refuses_at_the_start_is_one_line_and_69(lattice: Lattice, start: Callable[..., Program]) -> None:
    program = start("-q", "worker", "tasks", "--processes", "3", url="postgresql://nobody@127.0.0.1:1/none")

    assert program.process.wait(PATIENCE_S) == 69
    assert len(program.err.splitlines()) == 1, program.err


def test_a_store_that_cannot_be_used_is_one_line_and_78(
    lattice: Lattice, start: Callable[..., Program], tmp_path: Path
) -> None:
    (tmp_path / "letter.txt").write_text("Dear database, " * 50)

    program = start("-q", "worker", "tasks", "--processes", "3", url=f"sqlite:///{tmp_path / 'letter.txt'}")

    assert program.process.wait(PATIENCE_S) == 78
    assert "not a database" in program.err
    assert len(program.err.splitlines()) == 1, program.err


def test_dev_finds_the_app_and_tells_what_it_does(lattice: Lattice, start: Callable[..., Program]) -> None:
    program = start("dev")

    assert lattice.submit("sums", "add", [1]).result(timeout=PATIENCE_S) == 2
    assert [line.split()[0] for line in program.err.splitlines()[:4]] == ["app", "store", "broker", "worker"]
    assert program.end(signal.SIGINT) == 130


def test_dev_without_an_app_says_what_it_looked_for(start: Callable[..., Program]) -> None:
    program = start("-q", "dev")

    assert program.process.wait(PATIENCE_S) == 78
    assert "neither tasks.py nor app.py" in program.err

"""The stock `dramatiq` command runs the workers of any app file, with all of Dramatiq's middleware."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dramatiq import group, pipeline

from lattice_tasks import Lattice
from tests.working import opened, states, stored, until, until_state

APP = """
import os, time
import dramatiq
from dramatiq.middleware import CurrentMessage
from lattice_tasks import Lattice, Park, current

lattice = Lattice()
SOON = dict(min_backoff=1, max_backoff=2)
log = open(os.environ["APP_LOG"], "a", buffering=1)


@lattice.task(queue="gpu", max_retries=2, **SOON)
def fail():
    raise ValueError("no")


@lattice.task(queue="gpu", time_limit=300, max_retries=0)
def slow():
    while True:
        pass


@lattice.task(queue="gpu")
def where():
    return [os.getpid(), current.invocation.id == CurrentMessage.get_current_message().message_id]


@lattice.task(queue="gpu", notify_shutdown=True)
def patient():
    log.write("patient began\\n")
    time.sleep(0.01)
    while True:
        pass


@dramatiq.actor(queue_name="cpu", on_success="note")
def add(left, right):
    return left + right


@dramatiq.actor(queue_name="cpu")
def note(*args):
    log.write(f"note {args[-1]!r}\\n")
"""


class Site:
    """A folder with an app, and the store that it uses."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self.folder, self.store_url = folder, store_url
        self.log = folder / "log"
        self.log.touch()
        (folder / "app.py").write_text(APP)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        environment = os.environ | {
            "LATTICE_STORE_URL": self.store_url,
            "LATTICE_LOG_LEVEL": "error",
            "APP_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-m", "dramatiq", "app", "-p", "1", "-t", "2", *arguments]
        with open(self.folder / "stderr", "ab") as stderr:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=stderr)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Site:
    return Site(tmp_path, store_url)


@pytest.mark.slow
def test_the_stock_command_runs_retries_limits_chains_and_results(site: Site) -> None:
    with opened(site.store_url) as lattice:
        jobs = [lattice.submit("gpu", name) for name in ("fail", "slow", "where")]
        add, note = actor_messages(lattice)
        pipe = pipeline([add(1, 2), add(3), note()], broker=lattice.broker)
        together = group([add(n, n) for n in range(5)], broker=lattice.broker)
        together.add_completion_callback(note("together"))
        with site.running() as process:
            pipe.run()
            together.run()
            until_state(jobs[0], "parked")
            until_state(jobs[1], "parked")
            pid, is_current = jobs[2].result(timeout=10)
            until(lambda: "note 'together'" in site.lines())
            until(lambda: len(site.lines()) >= 9)
        letters = {letter.task_id: letter for letter in lattice.dead_letters("gpu").list()}

    assert (letters[jobs[0].id].reason, letters[jobs[0].id].attempts) == ("unknown", 3)
    assert letters[jobs[1].id].reason == "time_limit"
    assert is_current
    assert pid != process.pid
    # Each addition is told once (on_success), the pipeline's end and the group's once each.
    expected = ["note 3", "note 6", "note 6", "note 'together'", *[f"note {2 * n}" for n in range(5)]]
    assert sorted(site.lines()) == sorted(expected)
    assert process.returncode == 0


@pytest.mark.slow
def test_stopping_the_stock_command_hands_back_what_runs_uncharged(postgres_url: str, tmp_path: Path) -> None:
    """Reliability 2; and it serves the queues it is told to."""
    site = Site(tmp_path, postgres_url)
    with opened(site.store_url) as lattice:
        jobs = [lattice.submit("gpu", "patient"), lattice.submit("cpu", "note", ("x",))]
        with site.running("--queues", "gpu", "--worker-shutdown-timeout", "5000"):
            until(lambda: site.lines() == ["patient began"])
        assert states(jobs) == ["waiting", "waiting"]
        assert jobs[0].refresh().attempt == 0
        assert stored(lattice, "worker") == stored(lattice, "lease") == 0


def actor_messages(lattice: Lattice) -> tuple[object, object]:
    add = lattice.task(queue="cpu", name="add")(lambda left, right=0: None)
    note = lattice.task(queue="cpu", name="note")(lambda *args: None)
    return add.message, note.message

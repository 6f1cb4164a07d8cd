"""`dlq replay --here`: one attempt in the operator's own process, where a debugger can see it."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dramatiq
import pytest

from lattice_tasks import Lattice
from lattice_tasks.broker.loading import load_app

from .conftest import CommandLine
from .test_entry import started
from .test_worker import until

APP = """
import os, time
from pathlib import Path
from lattice_tasks import Lattice

lattice = Lattice({url!r}, set_default=False, log_level="critical")

@lattice.task(queue="sums", max_retries=0)
def fail(number, text="it broke"):
    secret = number + 41
    if Path("slow").exists():
        Path("started").touch()
        time.sleep(60)
    if not Path("mended").exists():
        raise ValueError(text)
    return [os.getpid(), secret]
"""


@dataclass(frozen=True)
class Parked:
    """One dead letter, entry 1 of the queue `sums`, and the app file that declares its task."""

    app: str
    task_id: str

    @property
    def arguments(self) -> list[str]:
        return ["dlq", "replay", "1", "--queue", "sums", "--here", "--app", self.app]


@pytest.fixture
def parked(store_url: str, tmp_path: Path) -> Iterator[Parked]:
    name = f"app{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(APP.format(url=store_url))
    module, _ = load_app(f"{name}.py")
    lattice: Lattice = module.lattice
    task_id = module.fail.submit(1).id
    worker = dramatiq.Worker(lattice.broker, worker_timeout=20, worker_threads=1)
    worker.start()
    lattice.broker.join("sums", timeout=20_000)
    worker.stop()
    yield Parked(f"{name}.py", task_id)
    lattice.close()
    sys.path.remove(str(tmp_path))
    del sys.modules[name]


def test_it_runs_here_and_success_takes_the_letter_away(cli: CommandLine, parked: Parked, tmp_path: Path) -> None:
    (tmp_path / "mended").touch()

    ran = cli(*parked.arguments, "-o", "json")
    task = cli.json("tasks", "show", parked.task_id)

    assert (ran.code, [row["outcome"] for row in ran.data]) == (0, ["succeeded"]), ran.err
    assert (task["state"], task["result"]) == ("succeeded", [os.getpid(), 42])
    assert cli.json("dlq", "count") == {"count": 0}
    assert cli.json("workers", "list") == []
    assert cli("db", "check").code == 0


def test_a_failure_shows_the_users_own_frames_and_stays_on_the_shelf(cli: CommandLine, parked: Parked) -> None:
    ran = cli(*parked.arguments)
    letter = cli.json("dlq", "show", "1", "--queue", "sums")

    assert ran.code == 1
    assert "failed again: ValueError: it broke" in ran.err
    frames = [line for line in ran.err.splitlines() if line.startswith("  File ")]
    assert [parked.app in frame for frame in frames] == [True]
    assert (letter["earlier_lives"], letter["is_replaying"], letter["attempts"]) == (1, False, 1)
    assert cli("db", "check").code == 0


def test_the_apps_own_store_is_used_whatever_the_flags_say(lite: CommandLine, parked: Parked, tmp_path: Path) -> None:
    (tmp_path / "mended").touch()

    ran = lite.bare("--store-url", "sqlite:///elsewhere.db", *parked.arguments)

    assert ran.code == 0, ran.err
    assert not (tmp_path / "elsewhere.db").exists()


def test_the_debugger_opens_where_it_failed(
    cli: CommandLine, parked: Parked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p 'secret is', secret\nq\n"))

    ran = cli(*parked.arguments, "--pdb")

    assert "('secret is', 42)" in capsys.readouterr().out
    assert ran.code == 1
    assert cli.json("dlq", "show", "1", "--queue", "sums")["is_replaying"] is False


def test_meanwhile_nobody_else_replays_it_and_ctrl_c_puts_it_back(
    cli: CommandLine, parked: Parked, tmp_path: Path
) -> None:
    """C28: two operators at once: one wins, the other is told."""
    (tmp_path / "slow").touch()
    program = started(*parked.arguments, cwd=tmp_path, stdout=subprocess.DEVNULL)
    until((tmp_path / "started").exists)

    second = cli("dlq", "replay", "1", "--queue", "sums")
    here = cli(*parked.arguments)
    discard = cli("dlq", "discard", "1", "--queue", "sums", "--yes")
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=30)
    letter = cli.json("dlq", "show", "1", "--queue", "sums")

    assert [second.code, here.code, discard.code, program.returncode] == [4, 4, 4, 130]
    assert err.splitlines()[-1] == "interrupted"
    assert (letter["error"].startswith("KeyboardInterrupt"), letter["is_replaying"]) == (True, False)
    assert cli("db", "check").code == 0


def test_an_app_without_a_lattice_is_told(lite: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "nothing_here.py").write_text("")

    ran = lite("dlq", "replay", "1", "--queue", "sums", "--here", "--app", "nothing_here.py")

    assert (ran.code, ran.err) == (78, "error: app 'nothing_here.py' holds no Lattice\n")

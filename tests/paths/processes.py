"""Processes that a test starts: signalled by pid, and never left behind."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.working import until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0


class Process:
    """A started process, whose output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command, env=dict(environment), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP; returns when every thread has stopped, which may take them a moment."""
        self.signal(signal.SIGSTOP)
        until(lambda: set(states_of_threads(self.pid)) <= {"T", "Z"}, f"every thread of {self.pid} to stop")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        return self._process.wait(patience_s)

    def stop(self, patience_s: float = PATIENCE_S) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(patience_s)

    def end(self) -> None:
        """Leave nothing behind: it, and whatever it started. The test is over, so nobody has to stop in good order."""
        if self.is_alive:
            for pid in (*children(self.pid), self.pid):
                if str(ROOT) in environment_of(pid):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(5)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def is_alive(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except (FileNotFoundError, ProcessLookupError):
        return False


def states_of_threads(pid: int) -> list[str]:
    """The state of each thread as one letter, T: stopped."""
    stats = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]


def children(pid: int) -> list[int]:
    """Its children and theirs."""
    try:
        direct = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return direct + [other for one in direct for other in children(one)]


def environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""

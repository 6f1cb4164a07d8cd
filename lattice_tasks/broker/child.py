"""One worker process as its supervisor sees it: how it is started, what it reports, how it is ended.

A child reports over a pipe, one line each: `incarnation ID` for each worker id it takes, `ready` once it works, `failed
CODE TEXT` when it cannot even start. So a broken app is told once and in one line, however many processes there are, and the
successor of a child that died knows whose leases to free at once: their parent saw the process end.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lattice_tasks import clock

__all__ = ["Child", "command_of"]

#: One that has lived so long counts as up, and one that dies earlier as having died young.
YOUNG_S = 10.0
_MOST_REPORT_BYTES = 65_536
_HOME = Path(__file__).resolve().parents[2]


def command_of(app: str, queues: Sequence[str], threads: int, shutdown_timeout_ms: int) -> list[str]:
    """The command line of a child, but for the report pipe that `Child` adds. No queues: all that the app declares."""
    chosen = ["--queues", ",".join(queues)] if queues else []
    spans = ["--threads", str(threads), "--shutdown-timeout-ms", str(shutdown_timeout_ms)]
    # An app's own `queue.py` or `types.py` must not stand before Python's while we are imported; `load_app` adds the
    # folder later. Only who runs from a checkout that is not installed needs it at once.
    safe = [] if Path.cwd() == _HOME else ["-P"]
    return [sys.executable, *safe, "-m", "lattice_tasks", "worker-child", app, *chosen, *spans]


class Child:
    """A started process. Its `report_fd` is readable when it has said something, and at its end."""

    def __init__(
        self,
        slot: int,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        buries: Sequence[int] = (),
    ) -> None:
        self.slot = slot
        self.incarnations: list[int] = []
        self._buries = list(buries)
        self.is_ready = False
        self.failure: tuple[int, str] | None = None
        self.kill_at: float | None = None
        self._heard = b""
        self.report_fd, theirs = os.pipe()
        os.set_blocking(self.report_fd, False)
        try:
            self._process = subprocess.Popen(
                [*command, "--report-fd", str(theirs), "--parent", str(os.getpid()), *_bury_option(buries)],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs,),
                # Its own process group: Ctrl-C in a terminal reaches the parent alone, which hands it on once.
                process_group=0,
            )
        except OSError:
            os.close(self.report_fd)
            raise
        finally:
            os.close(theirs)
        self._started_at = clock.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        """How long ago it was started."""
        return clock.monotonic() - self._started_at

    @property
    def is_up(self) -> bool:
        """Whether it said that it works, or has lived long enough to be believed."""
        return self.is_ready or self.age_s >= YOUNG_S

    def listen(self) -> bool:
        """Take in what it has reported; False when the pipe is closed."""
        while True:
            try:
                heard = os.read(self.report_fd, 4096)
            except BlockingIOError:
                return True
            self._heard += heard
            *lines, self._heard = self._heard[:_MOST_REPORT_BYTES].split(b"\n")
            for line in lines:
                self._understand(line.decode("utf-8", "replace"))
            if not heard:
                return False

    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._process.poll()

    def stop(self, kill_after_s: float) -> None:
        """Ask it to stop in good order, once; it is due to be killed when it takes longer."""
        if self.kill_at is None:
            self.kill_at = clock.monotonic() + kill_after_s
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now; harmless when it has ended."""
        self._process.kill()

    @property
    def leaves_behind(self) -> list[int]:
        """Worker ids whose leases nobody has freed, once it is dead: its own, and those it was to bury but did not."""
        return [*([] if self.is_ready else self._buries), *self.incarnations]

    def close(self) -> None:
        """Let go of its pipe, after its end."""
        with suppress(OSError):
            os.close(self.report_fd)

    def _understand(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "ready":
            self.is_ready = True
        elif word == "incarnation" and rest.isdecimal():
            self.incarnations.append(int(rest))
        elif word == "failed":
            code, _, text = rest.partition(" ")
            self.failure = (int(code) if code.isdecimal() else 1, text)


def _bury_option(worker_ids: Sequence[int]) -> list[str]:
    return ["--bury", ",".join(map(str, worker_ids))] if worker_ids else []

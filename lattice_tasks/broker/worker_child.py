"""The entry of one worker process under the supervisor: `python -m lattice_tasks worker-child APP …`.

It ends when its supervisor does, however that died, and it reports a start that cannot succeed instead of printing it.
This path never loads the command line: what a worker imports, it keeps in memory as many times as there are processes.
"""

import argparse
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from lattice_tasks.broker.process import run
from lattice_tasks.errors import LatticeError
from lattice_tasks.telemetry import make_log

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_LOOK_EVERY_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run one worker process until it is told to stop; returns its exit code."""
    given = _parser().parse_args(arguments)
    end_with(given.parent)
    logging.lastResort = _LastResort()
    queues = given.queues.split(",") if given.queues else None
    try:
        code = run(
            given.app,
            queues,
            given.threads,
            given.shutdown_timeout_ms,
            buries=[int(worker_id) for worker_id in given.bury.split(",") if worker_id],
            on_incarnation=lambda worker_id: report(given.report_fd, f"incarnation {worker_id}"),
            on_ready=lambda: report(given.report_fd, "ready"),
        )
    except LatticeError as error:
        report(given.report_fd, f"failed {error.exit_code} {' '.join(str(error).split())}")
        return error.exit_code
    return code


class _LastResort(logging.Handler):
    """Log lines of Dramatiq and of the app, in the form of our own, where the app has set up no logging itself."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log = make_log("warning")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; what a record carries of an exception becomes a field."""
        trace = {"exc_info": record.exc_info} if record.exc_info else {}
        self._log.log(record.levelno, record.getMessage(), logger=record.name, **trace)


def report(fd: int, line: str) -> None:
    """Tell the supervisor; one that is gone does not hear it."""
    with suppress(OSError):
        os.write(fd, line.encode("utf-8", "backslashreplace") + b"\n")


def end_with(parent_pid: int, stop: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)) -> None:
    """Stop this process in good order when its parent is gone, also when that was killed with -9.

    On Linux the kernel tells; elsewhere a thread looks once a second.
    """
    try:
        told = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) == 0
    except (AttributeError, OSError):
        told = False
    if os.getppid() != parent_pid:  # it died before we asked
        stop()
    elif not told:
        threading.Thread(target=_watch, args=(parent_pid, stop), daemon=True, name="lattice-parent").start()


def _watch(parent_pid: int, stop: Callable[[], None]) -> None:
    pause = threading.Event()
    while os.getppid() == parent_pid:
        pause.wait(_LOOK_EVERY_S)
    stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lattice-tasks worker-child", add_help=False)
    parser.add_argument("app")
    parser.add_argument("--queues", default="")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--shutdown-timeout-ms", type=int, required=True)
    parser.add_argument("--bury", default="")
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    return parser

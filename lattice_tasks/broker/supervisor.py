"""The parent of the worker processes: starts them, replaces one that dies, and hands signals on.

It runs no task and needs no store. The first child goes ahead of the others: if it cannot import the app or reach the
store, the whole command ends with that reason. Once one has been up, a child that dies is replaced whatever it died of,
after growing pauses while it keeps dying young. A child that ends with 0 unasked was drained and is not replaced.

    SIGTERM, SIGINT   stop in good order; a second one kills
    SIGHUP            restart one by one: an old process leaves when its successor is up, and a broken one changes nothing
"""

import os
import random
import selectors
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from lattice_tasks import clock
from lattice_tasks.broker.child import YOUNG_S, Child
from lattice_tasks.errors import LatticeError, SettingsError, StoreUnavailable
from lattice_tasks.telemetry import Telemetry

__all__ = ["Supervisor", "pause_s"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
#: With these a first child says that trying again does not help, and this is raised for it.
_HOPELESS: dict[int, type[LatticeError]] = {69: StoreUnavailable, 78: SettingsError}


def pause_s(deaths: int, chance: float) -> float:
    """How long to wait after the n-th young death in a row: 0.5 s doubling to 10 s, a quarter less or more by chance.

    Args:
        chance: 0 to 1, drawn by the caller, so that many supervisors do not restart in step.
    """
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (min(deaths, 16) - 1)) * (0.75 + chance / 2)


class Supervisor:
    """Keeps `processes` children of one command running until it is told to stop. Needs the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        telemetry: Telemetry,
        *,
        kill_after_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            command: of one child; it must understand `--report-fd`, `--parent` and `--bury`.
            kill_after_s: how long a child may take to stop before it is killed.
            environment: of the children; this process's own unless given.
        """
        self._command = command
        self._telemetry = telemetry
        self._kill_after_s = kill_after_s
        self._environment = environment
        self._children: dict[int, Child] = {}  # by slot
        self._waiting: dict[int, float] = dict.fromkeys(range(processes), 0.0)  # slot: when to start it
        self._young_deaths: dict[int, int] = dict.fromkeys(range(processes), 0)
        self._orphaning: dict[int, list[int]] = {}  # slot: worker ids that its next child shall bury
        self._leaving: list[Child] = []
        self._rolling: deque[int] = deque()
        self._successor: Child | None = None
        self._has_been_up = False
        self._failure: tuple[int, str] | None = None
        self._stop_signal: int | None = None
        self._is_clean = True
        self._signals: deque[int] = deque()
        self._had_terminal = _has_terminal()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Supervise until the end; returns the exit code of the command.

        Raises:
            SettingsError, StoreUnavailable: the first child could not start, and why.
        """
        with self._hearing():
            try:
                while not self._is_over():
                    self._wait()
                    self._obey()
                    self._bury()
                    self._start_due()
                    self._roll()
                    self._kill_late()
            finally:
                for child in self._everyone():
                    child.kill()
        if self._failure is not None:
            code, text = self._failure
            raise _HOPELESS[code](text)
        if self._stop_signal == signal.SIGINT:
            return 130
        return 0 if self._is_clean else 1

    def _everyone(self) -> list[Child]:
        return [*self._children.values(), *self._leaving, *([self._successor] if self._successor else [])]

    def _is_over(self) -> bool:
        return not self._everyone() and (self._is_stopping or not self._waiting)

    @property
    def _is_stopping(self) -> bool:
        return self._stop_signal is not None or self._failure is not None

    def _wait(self) -> None:
        """Sleep until a signal, a report, or the next thing that is due."""
        due = [child.kill_at for child in self._everyone() if child.kill_at is not None]
        if not self._is_stopping and self._may_start_more():
            due += self._waiting.values()
        if any(not child.is_up for child in self._everyone()):
            due.append(clock.monotonic() + YOUNG_S / 10)
        timeout_s = max(0.0, min(due) - clock.monotonic()) if due else None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            elif not key.data.listen():
                self._selector.unregister(key.fd)

    def _obey(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            if number == signal.SIGHUP and not (self._had_terminal and not _has_terminal()):
                self._rolling = deque(sorted(self._children))
            elif number != signal.SIGCHLD:
                self._stop(number)

    def _stop(self, number: int) -> None:
        if self._stop_signal is not None:
            self._is_clean = False
            for child in self._everyone():
                child.kill()
            return
        self._stop_signal = number
        self._telemetry.emit("supervisor.stopping", signal=signal.Signals(number).name, processes=len(self._everyone()))
        self._stop_all()

    def _stop_all(self) -> None:
        self._rolling.clear()
        for child in self._everyone():
            child.stop(self._kill_after_s)

    def _bury(self) -> None:
        """Take note of every child that has ended."""
        for child in self._everyone():
            self._has_been_up = self._has_been_up or child.is_up
            code = child.exit_code()
            if code is None:
                continue
            if child.report_fd in self._selector.get_map():
                child.listen()
                self._selector.unregister(child.report_fd)
            child.close()
            self._take_out(child, code)

    def _take_out(self, child: Child, code: int) -> None:
        if child in self._leaving:
            self._leaving.remove(child)
            return
        if child is self._successor:
            self._successor = None
            self._rolling.clear()
            reason = child.failure[1] if child.failure else ""
            self._telemetry.emit("supervisor.reload_failed", slot=child.slot, exit_code=code, error=reason)
            return
        del self._children[child.slot]
        if self._is_stopping:
            self._is_clean = self._is_clean and code in (0, -signal.SIGTERM)
        elif code == 0:
            self._telemetry.emit("supervisor.child_left", slot=child.slot, pid=child.pid)
        elif code in _HOPELESS and not self._has_been_up:
            self._failure = (
                code,
                child.failure[1] if child.failure else f"the first worker process exited with {code}",
            )
            self._stop_all()
        else:
            self._replace(child, code)

    def _replace(self, child: Child, code: int) -> None:
        error = child.failure[1] if child.failure else ""
        self._telemetry.emit("supervisor.child_died", slot=child.slot, pid=child.pid, exit_code=code, error=error)
        self._orphaning[child.slot] = child.leaves_behind
        deaths = self._young_deaths[child.slot] + 1 if child.age_s < YOUNG_S else 0
        self._young_deaths[child.slot] = deaths
        self._waiting[child.slot] = clock.monotonic() + (pause_s(deaths, random.random()) if deaths else 0.0)

    def _may_start_more(self) -> bool:
        """Until one has been up, only one is tried at a time."""
        return self._has_been_up or not self._children

    def _start_due(self) -> None:
        for slot, due_at in sorted(self._waiting.items()):
            if self._is_stopping or not self._may_start_more():
                return
            if due_at <= clock.monotonic():
                child = self._start(slot)
                if child is not None:
                    del self._waiting[slot]
                    self._children[slot] = child

    def _start(self, slot: int) -> Child | None:
        """A new child, or None when this machine has no room for one just now; tried again after a while."""
        try:
            child = Child(slot, self._command, self._environment, self._orphaning.pop(slot, []))
        except OSError as error:
            self._telemetry.emit("supervisor.start_failed", slot=slot, error=str(error))
            self._waiting[slot] = clock.monotonic() + _LONGEST_PAUSE_S
            return None
        self._selector.register(child.report_fd, selectors.EVENT_READ, child)
        self._telemetry.emit("supervisor.child_started", slot=slot, pid=child.pid)
        return child

    def _roll(self) -> None:
        """One step of a rolling restart: start a successor, and once it is up let the old one leave."""
        if self._is_stopping:
            return
        if self._successor is not None and self._successor.is_up:
            child, self._successor = self._successor, None
            if child.slot in self._children:
                self._children[child.slot].stop(self._kill_after_s)
                self._leaving.append(self._children[child.slot])
            self._waiting.pop(child.slot, None)
            self._children[child.slot] = child
        while self._rolling and self._successor is None:
            slot = self._rolling.popleft()
            if slot in self._children:  # one that waits to be started will be new anyway
                self._successor = self._start(slot)

    def _kill_late(self) -> None:
        for child in self._everyone():
            if child.kill_at is not None and child.kill_at <= clock.monotonic():
                self._is_clean = self._is_clean and not self._is_stopping
                child.kill_at = None
                child.kill()
                self._telemetry.emit("supervisor.child_killed", slot=child.slot, pid=child.pid)

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Turn signals into entries of a queue and a readable pipe; a handler that does more could run anywhere."""
        readable, writable = os.pipe()
        for end in (readable, writable):
            os.set_blocking(end, False)
        ignored = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN]  # nohup
        before = {number: signal.signal(number, self._note) for number in _SIGNALS if number not in ignored}
        before_fd = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        self._selector.register(readable, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(readable)
            os.close(writable)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)


def _has_terminal() -> bool:
    """Whether standard input is a terminal that is still there: a SIGHUP without it means that it was closed."""
    try:
        return os.isatty(sys.stdin.fileno()) and os.tcgetpgrp(sys.stdin.fileno()) >= 0
    except (AttributeError, OSError, ValueError):
        return False

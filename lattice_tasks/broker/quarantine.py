"""Suspects: invocations whose worker process died while it held them, so that one of them may have killed it.

A process runs one suspect at a time, its start recorded durably first. Until that has ended or survived five seconds, the
next suspect and everything else that is claimed waits, so a death charges the one that did it.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lattice_tasks import clock
from lattice_tasks.broker.envelope import LatticeMessage

__all__ = ["Quarantine"]

_PROVEN_S = 5.0


class Quarantine:
    """Holds suspects, and what waits behind the one that runs. Used by the pump's thread alone."""

    def __init__(self) -> None:
        self._suspects: deque[LatticeMessage] = deque()
        self._behind: list[LatticeMessage] = []
        self._running: LatticeMessage | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nothing else may start now."""
        return self.is_running or bool(self._suspects)

    @property
    def is_running(self) -> bool:
        """Whether a suspect runs that has not proved harmless yet."""
        running = self._running
        if running is None or running.outcome is not None:
            return False
        return not running.started_ns or clock.monotonic() - running.started_ns / 1e9 < _PROVEN_S

    def add(self, suspect: LatticeMessage) -> None:
        """A suspect was claimed."""
        self._suspects.append(suspect)

    def put_behind(self, messages: Iterable[LatticeMessage]) -> None:
        """These wait until the suspect has proved harmless."""
        self._behind += messages

    def next(self, may_start: Callable[[LatticeMessage], bool]) -> LatticeMessage | None:
        """The suspect to run now, its start recorded by `may_start` (False: it is not ours any more); None: none."""
        while self._suspects:
            suspect = self._suspects.popleft()
            if may_start(suspect):
                self._running = suspect
                return suspect
        self._running = None
        return None

    def release(self) -> list[LatticeMessage]:
        """What waited behind and may go on."""
        behind, self._behind = self._behind, []
        return behind

    def empty(self) -> list[LatticeMessage]:
        """Give up everything that has not started."""
        messages = [*self._suspects, *self._behind]
        self._suspects.clear()
        self._behind = []
        return messages

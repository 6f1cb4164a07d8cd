"""Suspects: invocations whose worker process died while it held them, so that one of them may have killed it.

A process runs one suspect at a time, its start recorded durably first, and only when all else that runs here has proved
harmless. Until its end is stored or it has survived five seconds, the next suspect and everything else that is claimed
waits. So a death charges the one that did it, and nobody else.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lattice_tasks import clock
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.tasks.invocation import Flag

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
        return self._running is not None and not _is_harmless(self._running)

    def add(self, suspect: LatticeMessage) -> None:
        """A suspect was claimed."""
        self._suspects.append(suspect)

    def put_behind(self, messages: Iterable[LatticeMessage]) -> None:
        """These wait until the suspect has proved harmless."""
        self._behind += messages

    def forget(self, message: LatticeMessage) -> None:
        """Its end is stored: a death that comes now is another's."""
        if message is self._running:
            self._running = None

    def is_alone(self, held: Iterable[LatticeMessage]) -> bool:
        """Whether, of all that this process holds, nothing is under way that may kill it yet."""
        waiting = {id(one) for one in (*self._suspects, *self._behind)}
        return all(id(one) in waiting or _is_harmless(one) for one in held)

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


def _is_harmless(message: LatticeMessage) -> bool:
    """It has survived for long enough, or has ended. The start of a suspect stays on record until its end is stored."""
    if message.outcome is not None:
        return not message.claimed.flags & Flag.SUSPECT
    return bool(message.started_ns) and clock.monotonic() - message.started_ns / 1e9 >= _PROVEN_S

"""How long an idle pump waits before it looks at the store again, without being woken.

Slowly when wake-ups of other processes arrive, four times a second when they do not, and for a moment very often when work
was announced whose commit is under way. On SQLite other processes' commits show in the file's version, which costs
microseconds to read.
"""

from lattice_tasks import clock
from lattice_tasks.broker.notifier import Notifier
from lattice_tasks.settings import Settings

__all__ = ["Patience"]

_ALONE_POLL_S = 0.25
_EXPECT_S, _EXPECT_EVERY_S = 0.004, 0.0006
_FILE_LOOKS_S = ((10.0, 0.004), (60.0, 0.02), (float("inf"), 0.1))  # (rested for up to, then look so often)


class Patience:
    """The pump's sense of time between two looks."""

    def __init__(self, settings: Settings, notifier: Notifier, is_embedded: bool) -> None:
        self._poll_s = settings.poll_ms / 1_000
        self._notifier = notifier
        self._is_embedded = is_embedded
        self._polled_at = 0.0
        self._busy_at = 0.0
        self._expected_until = 0.0

    def expect(self) -> None:
        """Work was announced."""
        self._expected_until = clock.monotonic() + _EXPECT_S

    def looked(self, found: bool) -> None:
        """The pump has looked at the store just now."""
        self._polled_at = clock.monotonic()
        if found:
            self._busy_at, self._expected_until = self._polled_at, 0.0

    @property
    def is_over(self) -> bool:
        """Whether it is time to look."""
        return clock.monotonic() - self._polled_at >= self.every_s

    def left_s(self) -> float:
        """Until it is time to look, at the store or at the file."""
        now = clock.monotonic()
        left = self._polled_at + self.every_s - now
        if not self._is_embedded:
            return left
        rested = now - self._busy_at
        return min(left, next(every for most, every in _FILE_LOOKS_S if rested < most))

    @property
    def every_s(self) -> float:
        """How often to look, as things are."""
        if clock.monotonic() < self._expected_until:
            return _EXPECT_EVERY_S
        if self._notifier.is_connected or self._is_embedded:
            return self._poll_s
        return min(_ALONE_POLL_S, self._poll_s)

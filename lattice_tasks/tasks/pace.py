"""How fast a plan goes, and when it stops by itself."""

from collections import deque
from collections.abc import Callable, Iterable

from lattice_tasks import clock

__all__ = ["Meter", "Pace", "StopRule"]

_CATCH_UP_S = 1.0
_WINDOW_S = 10.0


class Pace:
    """A schedule: the n-th of so many a second is due n / rate seconds after the first, whatever each one takes.

    Who fell behind catches up, by what a second would have brought and no more.

    Args:
        rate: a second; None: as fast as it goes.
        now: seconds of a monotonic clock.
    """

    def __init__(self, rate: float | None, now: Callable[[], float] = clock.monotonic) -> None:
        self._rate = rate
        self._now = now
        self.restart()

    def restart(self) -> None:
        """Begin anew: what was not sent while it rested is not made up for."""
        self._begun_at = self._now()
        self._taken = 0

    def due(self, most: int) -> int:
        """How many may go now, at most so many."""
        if self._rate is None:
            return most
        ahead = (self._now() - self._begun_at) * self._rate + 1 - self._taken
        surplus = ahead - max(1.0, self._rate * _CATCH_UP_S)
        if surplus > 0:
            self._begun_at += surplus / self._rate
            ahead -= surplus
        return min(most, int(ahead))

    def take(self, count: int) -> None:
        """So many went."""
        self._taken += count


class StopRule:
    """Watches the last replays that ended, and says when too many of them failed.

    Args:
        share: of failures, from 0 to 1; more than that is too many.
        window: how many of the last ends count.
        least: before so many have ended nothing is said.
    """

    def __init__(self, share: float, window: int = 50, least: int = 10) -> None:
        self._share = share
        self._least = least
        self._ends: deque[bool] = deque(maxlen=window)

    def add(self, ends: Iterable[bool]) -> None:
        """How replays ended: True is well."""
        self._ends.extend(ends)

    def verdict(self) -> str | None:
        """Why to stop; None: go on."""
        failed, ended = self._ends.count(False), len(self._ends)
        return self.of(failed, ended) if ended >= self._least else None

    def of(self, failed: int, ended: int) -> str | None:
        """The same of a step that has ended as a whole."""
        if not ended or failed / ended <= self._share:
            return None
        return f"{failed} of the last {ended} replays failed again, which is more than {self._share:.0%}"


class Meter:
    """Items a second over the last seconds."""

    def __init__(self, now: Callable[[], float] = clock.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, total: int) -> float:
        """So many are through now; returns the rate."""
        now = self._now()
        self._seen.append((now, total))
        while now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        then, before = self._seen[0]
        return (total - before) / (now - then) if now > then else 0.0

"""The only file that reads this machine's clocks.

Due times and deadlines are compared by the store's clock (`store/engine.py`), never by this one. What is read here: the
embedded store's instants, monotonic time for liveness and back-off, and instants that a person gave.

Changes of trees bear hybrid logical stamps, which never go back. They are ticked by whoever holds the tree, with the
store's clock: here are only the rules.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lattice_tasks.errors import InvalidInput, NaiveInstant

__all__ = [
    "MAX_DELAY_US",
    "TICKS_PER_US",
    "Stamp",
    "Version",
    "aware",
    "from_us",
    "instant_us",
    "monotonic",
    "monotonic_ns",
    "to_us",
    "us_of",
    "wall_us",
]

#: Ten years in microseconds: nothing may be put off for longer.
MAX_DELAY_US = 3652 * 86_400 * 1_000_000

#: A stamp's wall counts units of 100 ns.
TICKS_PER_US = 10

_MAX_COUNTER = 2**31 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

monotonic = time.monotonic
monotonic_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """A hybrid logical stamp: its order is that of the changes, whatever the clock did meanwhile.

    Attributes:
        wall: units of 100 ns since 1970 UTC, by the store's clock.
        counter: tells stamps of one wall apart; a signed 32-bit integer.
    """

    wall: int = 0
    counter: int = 0

    def tick(self, now: int) -> "Stamp":
        """The stamp of the next change; `now` in units of 100 ns. It is above this one even when the clock went back."""
        if now > self.wall:
            return Stamp(now)
        return Stamp(self.wall, self.counter + 1) if self.counter < _MAX_COUNTER else Stamp(self.wall + 1)

    def merge(self, other: "Stamp", now: int) -> "Stamp":
        """A stamp above both; its wall is the clock's only when the clock is ahead of both."""
        return max(self, other).tick(now)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Which change a cell comes from, and the order in which the last writer wins: by stamp, then by site."""

    stamp: Stamp = Stamp()
    origin: str = ""


def wall_us() -> int:
    """Now, in microseconds since 1970 UTC, as this machine believes."""
    return time.time_ns() // 1_000


def from_us(instant_us: int) -> datetime:
    """The aware UTC datetime of a stored instant."""
    return _EPOCH + timedelta(microseconds=instant_us)


def to_us(instant: datetime) -> int:
    """Microseconds since 1970 UTC of an aware datetime.

    Raises:
        NaiveInstant: it has no zone.
    """
    return (aware(instant, "instant") - _EPOCH) // _MICROSECOND


def aware(instant: datetime, name: str) -> datetime:
    """The instant itself; `name` is the argument's name for the error.

    Raises:
        NaiveInstant: it has no zone.
    """
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise NaiveInstant(
            f"{name}={instant.isoformat()} has no time zone; pass an aware datetime, e.g. datetime.now(UTC)"
        )
    return instant


def instant_us(instant: datetime, name: str) -> int:
    """`to_us` of an instant that is no further away than anything may be put off; `name` is for the error.

    Raises:
        NaiveInstant: it has no zone.
        InvalidInput: it is more than ten years ahead.
    """
    microseconds = to_us(aware(instant, name))
    if microseconds - wall_us() > MAX_DELAY_US:
        raise InvalidInput(f"{name}={instant.isoformat()} is more than ten years ahead")
    return microseconds


def us_of(span: timedelta, name: str) -> int:
    """Microseconds of a span; `name` is the argument's name for the error.

    Raises:
        InvalidInput: it is negative or longer than ten years.
    """
    microseconds = span // _MICROSECOND
    if microseconds < 0:
        raise InvalidInput(f"{name}={span} is negative; use zero or a positive timedelta")
    if microseconds > MAX_DELAY_US:
        raise InvalidInput(f"{name}={span} is longer than ten years")
    return microseconds

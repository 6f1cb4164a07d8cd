"""The only file that reads this machine's clocks.

Due times and deadlines are compared by the store's clock (`store/engine.py`), never by this one. What is read here: the
embedded store's instants, monotonic time for liveness and back-off, and instants that a person gave.
"""

import time
from datetime import UTC, datetime, timedelta

from lattice_tasks.errors import InvalidInput, NaiveInstant

__all__ = ["MAX_DELAY_US", "aware", "from_us", "instant_us", "monotonic", "monotonic_ns", "to_us", "us_of", "wall_us"]

#: Ten years in microseconds: nothing may be put off for longer.
MAX_DELAY_US = 3652 * 86_400 * 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

monotonic = time.monotonic
monotonic_ns = time.monotonic_ns


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

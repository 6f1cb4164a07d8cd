"""Instants and spans: exact, aware, bounded."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks import clock
from lattice_tasks.errors import InvalidInput, NaiveInstant

day = datetime.fromisoformat  # without a zone
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES, min_value=day("0002-01-01"), max_value=day("9998-01-01")))
def test_an_instant_survives_the_store_to_the_microsecond_whatever_its_zone(instant: datetime) -> None:
    """C57"""
    assert clock.from_us(clock.to_us(instant)) == instant


def test_the_same_instant_in_two_zones_is_the_same_number() -> None:
    """C57"""
    there = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5)))

    assert clock.to_us(there) == clock.to_us(there.astimezone(UTC))


def test_an_instant_without_a_zone_names_nothing() -> None:
    """C57"""
    with pytest.raises(NaiveInstant, match=r"_delay=2026-01-01T00:00:00 has no time zone"):
        clock.aware(day("2026-01-01"), "_delay")
    with pytest.raises(NaiveInstant):
        clock.to_us(day("2026-01-01"))


@given(st.timedeltas(timedelta(0), timedelta(days=3652)))
def test_a_span_is_counted_in_microseconds(span: timedelta) -> None:
    assert timedelta(microseconds=clock.us_of(span, "_delay")) == span


@pytest.mark.parametrize(
    ("span", "told"),
    [(timedelta(microseconds=-1), "negative"), (timedelta(days=-1), "negative"), (timedelta(days=3653), "ten years")],
)
def test_a_span_that_is_negative_or_endless_is_refused(span: timedelta, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        clock.us_of(span, "_delay")

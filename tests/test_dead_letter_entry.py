"""The value on the shelf: what it keeps, how it is cleaned, and that reading it never fails."""

import json
from datetime import datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import (
    MAX_ERROR_BYTES,
    MAX_LIVES,
    MAX_TRACEBACK_BYTES,
    REASONS,
    DeadLetter,
    Life,
    cleaned,
    decode,
    encode,
    with_life,
)
from lattice_tasks.errors import NaiveInstant
from tests.letters import letter, life

ANY_TEXT = st.text(st.characters(exclude_categories=()))
STORED_TEXT = st.text(st.characters(exclude_categories=("Cs",)))
INSTANTS = st.integers(0, 2**57).map(clock.from_us)
LIFE = {
    "reason": st.sampled_from(REASONS),
    "error": ANY_TEXT,
    "traceback": ANY_TEXT,
    "attempts": st.integers(0, 2**31),
    "worker": ANY_TEXT,
    "version": STORED_TEXT,
    "ended": STORED_TEXT,
    "parked_at": INSTANTS,
}
LETTERS = st.builds(
    DeadLetter,
    task_id=st.uuids().map(str),
    seq=st.integers(1, 2**63 - 1),
    queue=STORED_TEXT,
    actor=STORED_TEXT,
    body=st.binary(),
    key=st.none() | STORED_TEXT,
    priority=st.integers(-(2**31), 2**31 - 1),
    submitted_at=INSTANTS,
    lives=st.lists(st.builds(Life, **LIFE), max_size=3).map(tuple),
    **LIFE,
)


@given(LETTERS, st.integers(1, 2**63 - 1), st.booleans())
def test_a_letter_comes_back_as_it_went(one: DeadLetter, entry_id: int, is_replaying: bool) -> None:
    """D-10, D-100"""
    back = decode(entry_id, encode(one), is_replaying)

    assert back == msgspec.structs.replace(one, entry_id=entry_id, is_replaying=is_replaying)
    assert back.is_readable


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_at(data: bytes) -> None:
    """C13"""
    back = decode(3, data)

    assert (back.entry_id, back.body, back.is_readable) == (3, data, False)
    assert "cannot be read" in back.error


@given(LETTERS, st.data())
def test_a_damaged_letter_can_be_looked_at(one: DeadLetter, data: st.DataObject) -> None:
    """C13: any byte changed, any length cut off."""
    stored = bytearray(encode(one))
    place = data.draw(st.integers(0, len(stored) - 1))
    if data.draw(st.booleans()):
        del stored[place:]
    else:
        stored[place] = data.draw(st.integers(0, 255))

    back = decode(3, bytes(stored))

    assert back.entry_id == 3
    assert back.is_readable or back.body == bytes(stored)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x80\x81",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"v":1,"letter":' + b"[" * 1_000_000,
        b'{"v":1,"letter":{"reason":' + b'{"a":' * 100_000,
        b'{"v":1e999,"letter":{}}',
        b'{"v":"1","letter":null}',
        encode(letter(1)).replace(b"2023-", b"20x3-"),
        encode(letter(1)).replace(b"Z", b""),
        encode(letter(1)).replace(b'"body":"', b'"body":"!'),
    ],
)
def test_damage_is_told_with_the_bytes_kept(stored: bytes) -> None:
    """C13"""
    back = decode(9, stored)

    assert (back.reason, back.body, back.is_readable) == ("schema", stored, False)
    assert back.error.startswith("entry 9 cannot be read: it is damaged")


@pytest.mark.parametrize("shape", [{"letter": {"new": 1}}, json.loads(encode(letter(1)))])
def test_a_newer_form_is_told_from_damage(shape: dict[str, object]) -> None:
    back = decode(9, json.dumps(shape | {"v": 2}).encode())

    assert not back.is_readable
    assert "newer code" in back.error


def test_fields_that_this_code_does_not_know_are_passed_over() -> None:
    stored = encode(letter(1)).replace(b'"letter":{', b'"more":1,"letter":{"added":[1],')

    assert decode(1, stored).task_id == letter(1).task_id


@given(ANY_TEXT, st.integers(64, 200))
def test_cleaned_text_fits_and_is_stable(text: str, limit: int) -> None:
    clean = cleaned(text, limit)

    assert len(clean.encode()) <= limit
    assert "\0" not in clean
    assert cleaned(clean, limit) == clean
    if "\0" not in text and text.isprintable() and len(text.encode()) <= limit:
        assert clean == text


def test_what_no_store_takes_is_shown_escaped() -> None:
    assert cleaned("a\0b \udc80 \ud83d ü€😀\n", 64) == "a\\x00b \\udc80 \\ud83d ü€😀\n"


def test_a_long_text_loses_its_middle() -> None:
    text = "ValueError: " + "€" * 100_000 + " in train.py line 7"

    clean = cleaned(text, MAX_ERROR_BYTES)

    assert clean.startswith("ValueError: €€")
    assert clean.endswith("€ in train.py line 7")
    assert "left out" in clean
    assert MAX_ERROR_BYTES - 8 <= len(clean.encode()) <= MAX_ERROR_BYTES


def test_a_letter_is_clean_from_its_birth() -> None:
    dirty = letter(1, error="\0" * 9_000, traceback="\ud800" * 90_000, worker="h\udc00st")

    assert len(dirty.error) <= MAX_ERROR_BYTES
    assert len(dirty.traceback) <= MAX_TRACEBACK_BYTES
    assert dirty.worker == "h\\udc00st"
    assert decode(0, encode(dirty)) == dirty


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(NaiveInstant, match="submitted_at"):
        encode(letter(1, submitted_at=clock.from_us(0).replace(tzinfo=None)))


def test_an_instant_keeps_its_moment_in_any_zone() -> None:
    moment = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert decode(1, encode(letter(1, submitted_at=moment))).submitted_at == moment


def test_a_life_more_shows_the_last_and_keeps_the_earlier() -> None:
    """C26: the second death shows both lives."""
    first = letter(1, entry_id=4, reason="schema", attempts=5)

    second = with_life(first, life("again", reason="time_limit", attempts=6))

    assert (second.reason, second.error, second.attempts, second.ended) == ("time_limit", "again", 6, "replay failed")
    assert [(one.reason, one.attempts, one.ended, one.traceback) for one in second.lives] == [
        ("schema", 5, "parked", "Traceback …")
    ]
    unchanged = ("entry_id", "task_id", "seq", "queue", "actor", "body", "key", "priority", "submitted_at")
    assert [getattr(second, name) for name in unchanged] == [getattr(first, name) for name in unchanged]
    assert decode(4, encode(second)) == second


def test_lives_are_bounded_and_the_first_is_kept() -> None:
    """C25"""
    one = letter(1, error="first")
    for number in range(100):
        one = with_life(one, life(f"replay {number}", traceback="x" * 100_000))

    assert (one.error, one.lives[0].error, one.lives[1].error, one.lives[-1].error) == (
        "replay 99",
        "first",
        "replay 80",
        "replay 98",
    )
    assert (len(one.lives), one.forgotten_lives) == (MAX_LIVES, 80)
    assert len(encode(one)) < (MAX_LIVES + 1) * 40_000

"""Everything that cannot be stored, or read back as it was, is refused at the door by name, and nothing is stored."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks import Lattice, LatticeError
from lattice_tasks.errors import (
    InvalidInput,
    NaiveInstant,
    NotEncodable,
    QueueExists,
    QueueNotFound,
    ReservedName,
    TooDeep,
    TooLarge,
)
from lattice_tasks.tasks.arguments import encode_body
from tests.working import done, opened, stored, working

pytestmark = pytest.mark.recycled

MIB = 1_048_576
NAIVE = datetime.fromisoformat("2030-01-01")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé鍵", max_size=4), inner, max_size=4),
    max_leaves=12,
)


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lattice]:
    """One for the checks that are made before any store is asked."""
    with opened(f"sqlite:///{tmp_path_factory.mktemp('bad') / 'lattice.db'}") as lattice:
        lattice.queues.add("default")
        yield lattice


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


UNENCODABLE = {
    "object": object(),
    "set": {1},
    "frozenset": frozenset(),
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "date": date(2026, 1, 1),
    "timedelta": timedelta(1),
    "Decimal": Decimal("1.5"),
    "UUID": uuid4(),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "Enum": Colour.RED,
    "dataclass": Point(1),
    "complex": 1j,
    "function": print,
    "class": int,
    "generator": (n for n in ()),
    "range": range(3),
    "Path": Path("."),
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "2**64": 2**64,
    "-2**63-1": -(2**63) - 1,
    "10**400": 10**400,
    "integer key": {1: 2},
    "None key": {None: 2},
    "bytes key": {b"x": 2},
    "tuple key": {(1,): 2},
    "NUL": "a\0b",
    "lone surrogate": "a\ud800b",
    "NUL in a key": {"a\0b": 1},
    "lone surrogate in a key": {"\udfff": 1},
}


@pytest.mark.parametrize("value", UNENCODABLE.values(), ids=UNENCODABLE.keys())
def test_a_value_that_json_cannot_carry_unchanged_is_refused_by_its_argument(embedded: Lattice, value: Any) -> None:
    @embedded.task(name=f"take-{uuid4()}")
    def take(*args: Any, **kwargs: Any) -> None: ...

    ways = [
        ("args[1]", lambda: take.submit(1, value)),
        ("args[0]", lambda: take.submit([[value]])),
        ("here", lambda: take.submit(here=value)),
        ("here", lambda: take.submit(here={"deep": [1, {"er": value}]})),
        ("args[0]", lambda: take.submit_many([(1,), (value,)])),
        ("args[0]", lambda: take.send(value)),
        ("here", lambda: take.send_with_options(kwargs={"here": value})),
        ("args[0]", lambda: embedded.submit("default", "take", (value,))),
    ]
    for argument, way in ways:
        with pytest.raises(NotEncodable) as refused:
            way()
        assert argument in str(refused.value)
        assert len(str(refused.value)) < 400
        str(refused.value).encode()  # fit for any log
    assert stored(embedded) == 0


@given(value=JSON)
def test_whatever_is_accepted_comes_back_as_it_went_in(value: Any) -> None:
    body = encode_body((value,), {"k": value}, {}, 64, MIB)

    from_store = msgspec.json.decode(body)

    assert repr(from_store["args"]) == repr([value])
    assert repr(from_store["kwargs"]) == repr({"k": value})


def test_64_levels_are_enough_and_65_are_too_deep(lattice: Lattice) -> None:
    got: list[Any] = []

    @lattice.task
    def take(value: Any) -> None:
        got.append(value)

    take.submit(nested(64))
    for value in (nested(65), nested(900), nested(5_000)):
        with pytest.raises(TooDeep, match=r"args\[0\].* nested deeper"):
            take.submit(value)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TooDeep):
        take.submit(circle)

    with working(lattice):
        done(lattice)
    assert got == [nested(64)]
    assert stored(lattice) == 1


def test_a_mebibyte_of_arguments_is_enough_and_one_byte_more_is_too_large(lattice: Lattice) -> None:
    """Reliability 23"""
    sizes: list[int] = []

    @lattice.task
    def take(text: str) -> None:
        sizes.append(len(text))

    room = MIB - len(b'{"args":[""]}')
    take.submit("x" * room)
    with pytest.raises(TooLarge, match=r"take 1048577 bytes.* the limit is 1048576"):
        take.submit("x" * (room + 1))
    with pytest.raises(TooLarge):
        take.submit("é" * room)
    with pytest.raises(TooLarge):
        take.submit_many([("ok",), ("x" * (room + 1),)])

    assert stored(lattice) == 1
    with working(lattice):
        done(lattice)
    assert sizes == [room]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"_delay": NAIVE}, NaiveInstant, "_delay=.*no time zone"),
        ({"_deadline": NAIVE}, NaiveInstant, "_deadline=.*no time zone"),
        ({"_delay": timedelta(seconds=-1)}, InvalidInput, "_delay=.*negative"),
        ({"_deadline": timedelta(seconds=-1)}, InvalidInput, "_deadline=.*negative"),
        ({"_delay": timedelta(days=4000)}, InvalidInput, "_delay=.*ten years"),
        ({"_delay": datetime(9999, 1, 1, tzinfo=UTC)}, InvalidInput, "_delay=.*ten years"),
        ({"_delay": 5}, InvalidInput, "_delay=5 must be a timedelta"),
        ({"_delay": "5s"}, InvalidInput, "_delay='5s' must be a timedelta"),
        ({"_deadline": 5.5}, InvalidInput, "_deadline=5.5 must be a timedelta"),
        ({"_priority": 1.5}, InvalidInput, "_priority=1.5"),
        ({"_priority": "high"}, InvalidInput, "_priority='high'"),
        ({"_priority": True}, InvalidInput, "_priority=True"),
        ({"_priority": 2**31}, InvalidInput, "_priority=2147483648"),
        ({"_namespace": "other"}, InvalidInput, "_namespace cannot be given"),
        ({"_namespace": None}, InvalidInput, "_namespace cannot be given"),
        ({"_colour": "red"}, InvalidInput, "unknown option _colour; known are _deadline, _delay, _key, _priority"),
    ],
)
def test_a_bad_option_is_refused_by_name(
    embedded: Lattice, options: dict[str, Any], error: type[Exception], told: str
) -> None:
    """L-22, C57"""

    @embedded.task(name=f"take-{uuid4()}")
    def take(**kwargs: Any) -> None: ...

    with pytest.raises(error, match=told) as refused:
        take.submit(**options)
    assert isinstance(refused.value, ValueError)
    assert refused.value.exit_code == 2
    assert stored(embedded) == 0


@pytest.mark.parametrize("delay", [-1, -0.5, 10**18, float("nan"), float("inf"), "5", timedelta(seconds=-1)])
def test_a_bad_delay_of_dramatiqs_kind_is_refused(embedded: Lattice, delay: Any) -> None:
    @embedded.task(name=f"take-{uuid4()}")
    def take() -> None: ...

    with pytest.raises(InvalidInput, match="delay="):
        take.send_with_options(delay=delay)
    assert stored(embedded) == 0


BAD_NAMES = ["", "x" * 256, "a\0b", "a\nb", "\x1b[31m", "\x7f", "\u2028", "\ud800", "q.DQ", "q.XQ", None, 7, b"q"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_bad_queue_name_is_refused_everywhere(embedded: Lattice, name: Any) -> None:
    """L-20, L-23"""

    def declare() -> None:
        embedded.task(queue=name, name=str(uuid4()))(lambda: None)

    ways = [
        declare,
        lambda: embedded.submit(name, "take"),
        lambda: embedded.queues.add(name),
        lambda: embedded.queues.get(name),
        lambda: embedded.queues.depth(name),
        lambda: embedded.queues.pause(name),
        lambda: embedded.dead_letters(name),
        lambda: embedded.broker.declare_queue(name),
        lambda: embedded.broker.enqueue(dramatiq.Message(name, "take", (), {}, {})),
    ]
    for way in ways:
        with pytest.raises(InvalidInput, match="queue name") as refused:
            way()
        assert isinstance(refused.value, ReservedName) == str(name).endswith(("DQ", "XQ"))
        str(refused.value).encode()
    assert [queue.name for queue in embedded.queues.list()] == ["default"]


@pytest.mark.parametrize("actor", ["", "x" * 256, "a\0b", "\ud800", "a\nb", None, 7])
def test_a_bad_actor_name_is_refused(embedded: Lattice, actor: Any) -> None:
    with pytest.raises(InvalidInput, match="actor name"):
        embedded.submit("default", actor)
    assert stored(embedded) == 0


@pytest.mark.parametrize(
    "options",
    [{"x": object()}, {"x": "\0"}, {"x": "\ud800"}, {"x": {1: 2}}, {"x": float("nan")}, {"x": nested(100)}],
    ids=["object", "NUL", "surrogate", "number as name", "NaN", "nested"],
)
def test_bad_options_of_a_message_are_refused(embedded: Lattice, options: dict[str, Any]) -> None:
    @embedded.task(name=f"take-{uuid4()}")
    def take() -> None: ...

    with pytest.raises(InvalidInput, match="option x"):
        take.send_with_options(**options)
    assert stored(embedded) == 0


@pytest.mark.parametrize("message_id", ["", "x", "0198c5b2", "' or 1=1 --", "\0", "\ud800", 7, "é" * 36])
def test_a_forged_message_id_is_refused(embedded: Lattice, message_id: Any) -> None:
    @embedded.task(name=f"take-{uuid4()}")
    def take() -> None: ...

    with pytest.raises(InvalidInput, match="message id"):
        embedded.broker.enqueue(take.message().copy(message_id=message_id))
    assert stored(embedded) == 0


def test_a_message_id_is_the_invocations_id_however_it_is_written(lattice: Lattice) -> None:
    @lattice.task
    def take() -> None: ...

    upper = str(uuid4()).upper()
    lattice.broker.enqueue(take.message().copy(message_id=upper))
    lattice.broker.enqueue(take.message().copy(message_id=upper.lower()))

    assert lattice.job(upper).refresh().id == upper.lower()
    assert stored(lattice) == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"kind": "priority"}, "kind='priority'"),
        ({"kind": 7}, "kind=7"),
        ({"dlq_capacity": 0}, "dlq_capacity=0"),
        ({"dlq_capacity": True}, "dlq_capacity=True"),
        ({"dlq_capacity": 1.5}, "dlq_capacity=1.5"),
        ({"dlq_capacity": "9"}, "dlq_capacity='9'"),
        ({"dlq_on_full": "explode"}, "dlq_on_full='explode'"),
        ({"retention_ms": -1}, "retention_ms=-1"),
        ({"retention_ms": 2**63}, "retention_ms="),
        ({"retention_ms": "1"}, "retention_ms='1'"),
    ],
)
def test_a_queue_with_a_bad_field_is_refused_whole(embedded: Lattice, fields: dict[str, Any], told: str) -> None:
    """L-11"""
    with pytest.raises(InvalidInput, match=told):
        embedded.queues.add("new", **fields)
    with pytest.raises(QueueNotFound):
        embedded.queues.get("new")


def test_what_is_not_there_or_there_already_is_told(embedded: Lattice) -> None:
    with pytest.raises(QueueNotFound, match="no queue 'none'") as missing:
        embedded.queues.get("none")
    with pytest.raises(QueueNotFound):
        embedded.dead_letters("none")
    with pytest.raises(QueueExists, match="queue 'default' exists already") as taken:
        embedded.queues.add("default")

    assert (missing.value.exit_code, taken.value.exit_code) == (3, 4)
    assert issubclass(QueueNotFound, LatticeError)

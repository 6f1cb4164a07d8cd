"""A call is compared field by field, and changed by paths that cannot reach what is locked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.dead_letters.call import Call, call_of, changed, differences, names_in
from lattice_tasks.errors import InvalidInput

LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
CALLS = st.builds(Call, st.lists(VALUES, max_size=3), st.dictionaries(st.text(max_size=4), VALUES, max_size=3))


def told(before: Call, after: Call) -> list[tuple[str, str, Any, Any]]:
    return [(one.path, one.kind, one.before, one.after) for one in differences(before, after)]


def test_differences_are_told_by_their_path() -> None:
    before = Call([1, {"a": [1, 2]}], {"lr": 0.1, "old": None, "a.b": 1, "same": [1]})
    after = Call([1, {"a": [1, "2", 3]}, 9], {"lr": 0.2, "new": {}, "a.b": 2, "same": [1]})

    assert told(before, after) == [
        ("args.1.a.1", "changed", 2, "2"),
        ("args.1.a.2", "added", None, 3),
        ("args.2", "added", None, 9),
        ("kwargs.lr", "changed", 0.1, 0.2),
        ("kwargs.old", "removed", None, None),
        ('kwargs."a.b"', "changed", 1, 2),
        ("kwargs.new", "added", None, {}),
    ]


def test_one_and_true_and_one_point_zero_differ() -> None:
    assert [one[1] for one in told(Call([1, 1, True]), Call([True, 1.0, 1]))] == ["changed"] * 3


@given(CALLS, CALLS)
def test_setting_what_differs_makes_the_calls_alike(before: Call, after: Call) -> None:
    """The paths that are shown can be typed: every one of them leads to its place."""
    found = differences(before, after)
    sets = [(one.path, one.after) for one in found if one.kind != "removed"]
    unsets = [one.path for one in reversed(found) if one.kind == "removed"]

    made = changed(before, sets, unsets)

    assert differences(made, after) == []
    assert differences(before, before) == []


def test_an_edit_leaves_the_call_it_began_with_as_it_was() -> None:
    call = Call([[1]], {"cfg": {"a": 1}}, {"pipe_target": 1})

    made = changed(call, [("args.0.0", 5), ("args.1", "x"), ("kwargs.cfg.b", [])], ["kwargs.cfg.a"])

    assert (made.args, made.kwargs, made.options) == ([[5], "x"], {"cfg": {"b": []}}, {"pipe_target": 1})
    assert (call.args, call.kwargs) == ([[1]], {"cfg": {"a": 1}})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("id", "id is locked; an edit changes args and kwargs only"),
        ("queue", "queue is locked"),
        ("namespace", "namespace is locked"),
        ("submitted_at", "submitted_at is locked"),
        ("actor", "begins with args. or kwargs."),
        ("kwargs", "begins with args. or kwargs."),
        ("args.5", "5 is no position there; args.0 is the last, args.1 would append"),
        ("kwargs.lr.x.y", "there is no kwargs.lr.x"),
        (f"args.{'9' * 5_000}", "is no position"),
        ("args.x", "x is no position"),
        ("args.-1", "-1 is no position"),
        ("kwargs.nope.x", "there is no kwargs.nope"),
        ("kwargs.lr.x", "kwargs.lr is no object and no array"),
        ("", "is no path"),
        ("kwargs..x", "is no path"),
        ("kwargs.", "is no path"),
        ('kwargs."a', "is no path"),
        ("kwargs.a b", "is no path"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error(path: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        changed(Call([1], {"lr": 1}), [(path, 1)])


@pytest.mark.parametrize("path", ["kwargs.x", "args.1", "args.0.0"])
def test_what_is_not_there_cannot_be_taken_away(path: str) -> None:
    with pytest.raises(InvalidInput):
        changed(Call([1], {"lr": 1}), [], [path])


def test_a_path_is_read_as_it_is_written() -> None:
    assert names_in('kwargs."a.b".2.größe') == ["kwargs", "a.b", "2", "größe"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"args": {}}', b'{"kwargs": []}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_call_is_none(body: bytes) -> None:
    assert call_of(body) is None


def test_a_body_is_read_with_its_options() -> None:
    assert call_of(json.dumps({"args": [1], "options": {"a": 1}}).encode()) == Call([1], {}, {"a": 1})

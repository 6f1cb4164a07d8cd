"""What a dead letter's task was called with: read from the message, compared field by field, and changed by paths.

A path names a place in a call: `args.0`, `kwargs.lr`, `kwargs.model.layers.2`. A name with a dot, a quote or white space in
it stands in quotes, as JSON writes it: `kwargs."a.b"`. Pure: nothing here reads or writes a store.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from lattice_tasks.errors import InvalidInput

__all__ = ["Call", "Difference", "call_of", "changed", "differences", "names_in", "path_part"]

_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[^."\s]+')
_PLAIN = re.compile(r'[^."\s]+')
_LOCKED = ("id", "task_id", "queue", "namespace", "submitted_at")
_SIDES = ("args", "kwargs")


@dataclass(frozen=True, slots=True)
class Call:
    """Positional and keyword arguments; `options` are Dramatiq's, of the message."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two calls differ: `added`, `removed` or `changed`; the side where there is nothing is None."""

    path: str
    kind: str
    before: Any
    after: Any


def call_of(body: bytes) -> Call | None:
    """The call in a message; None when it cannot be read."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    args, kwargs, options = found.get("args", []), found.get("kwargs", {}), found.get("options", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(options, dict):
        return None
    return Call(args, kwargs, options)


def differences(before: Call, after: Call) -> list[Difference]:
    """Where they differ, in the order of the arguments; 1, 1.0 and true are three values."""
    return [
        *_differences(before.args, after.args, "args"),
        *_differences(before.kwargs, after.kwargs, "kwargs"),
    ]


def changed(call: Call, sets: Sequence[tuple[str, Any]] = (), unsets: Sequence[str] = ()) -> Call:
    """The call with values set, in order, then places taken away; a position right behind a list's end appends.

    Raises:
        InvalidInput: a path that leads nowhere, or to what is locked.
    """
    tree: dict[str, Any] = {"args": deepcopy(call.args), "kwargs": deepcopy(call.kwargs)}
    for path, value in sets:
        inside, last = _reach(tree, path, "--set")
        if isinstance(inside, dict):
            inside[last] = value
        elif (at := _position(last, inside, path, appends=True)) == len(inside):
            inside.append(value)
        else:
            inside[at] = value
    for path in unsets:
        inside, last = _reach(tree, path, "--unset")
        if isinstance(inside, dict) and last in inside:
            del inside[last]
        elif isinstance(inside, list):
            del inside[_position(last, inside, path)]
        else:
            raise InvalidInput(f"{path}: there is nothing to take away")
    return Call(tree["args"], tree["kwargs"], call.options)


def names_in(path: str) -> list[str]:
    """The parts of a path, without their quotes.

    Raises:
        InvalidInput: it is no path.
    """
    parts, at = [], 0
    while at <= len(path):
        part = _PART.match(path, at)
        if part is None:
            break
        parts.append(json.loads(part[0]) if part[0].startswith('"') else part[0])
        at = part.end() + 1
        if part.end() == len(path):
            return parts
        if path[part.end()] != ".":
            break
    raise InvalidInput(f"{path!r:.80} is no path; paths look like args.0 or kwargs.model.layers.2")


def _differences(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            yield from _at(before, after, name, f"{path}.{path_part(name)}")
    elif isinstance(before, list) and isinstance(after, list):
        old, new = dict(enumerate(before)), dict(enumerate(after))
        for position in range(max(len(before), len(after))):
            yield from _at(old, new, position, f"{path}.{position}")
    elif type(before) is not type(after) or before != after:
        yield Difference(path, "changed", before, after)


def _at(before: Mapping[Any, Any], after: Mapping[Any, Any], key: Any, path: str) -> Iterator[Difference]:
    if key not in before:
        yield Difference(path, "added", None, after[key])
    elif key not in after:
        yield Difference(path, "removed", before[key], None)
    else:
        yield from _differences(before[key], after[key], path)


def path_part(name: str) -> str:
    """A name as it stands in a path."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _reach(tree: dict[str, Any], path: str, verb: str) -> tuple[Any, str]:
    """The dict or list that holds the place, and the place's name in it."""
    names = names_in(path)
    if names[0] in _LOCKED:
        raise InvalidInput(f"{verb} {path}: {names[0]} is locked; an edit changes args and kwargs only")
    if names[0] not in _SIDES or len(names) < 2:
        raise InvalidInput(f"{verb} {path}: a path begins with args. or kwargs., as in args.0 or kwargs.lr")
    inside: Any = tree
    for depth, name in enumerate(names[:-1]):
        so_far = ".".join(names[: depth + 1])
        if isinstance(inside, dict) and name in inside:
            inside = inside[name]
        elif isinstance(inside, list):
            inside = inside[_position(name, inside, so_far)]
        else:
            raise InvalidInput(f"{verb} {path}: there is no {so_far}")
    if not isinstance(inside, dict | list):
        raise InvalidInput(f"{verb} {path}: {'.'.join(names[:-1])} is no object and no array")
    return inside, names[-1]


def _position(name: str, inside: Sequence[Any], path: str, appends: bool = False) -> int:
    """A position in the array; one behind its end, too, when it `appends`."""
    count = len(inside)
    if name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < count + appends:
        return int(name)
    parent = path.rpartition(".")[0]
    text = f"{parent}.{count - 1} is the last" if count else f"{parent} is empty"
    more = f", {parent}.{count} would append" if appends else ""
    raise InvalidInput(f"{path}: {name} is no position there; {text}{more}")

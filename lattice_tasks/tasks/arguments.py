"""What an invocation is called with: checked value by value, written as JSON, read back as it went in.

What JSON would change on the way (a set, NaN, a key that is no text), or a store cannot keep (NUL, lone surrogates), is
refused by the name of its argument.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lattice_tasks.errors import NotEncodable, TooDeep, TooLarge

__all__ = ["Body", "decode_body", "encode_body", "is_same_call"]

_PLAIN = frozenset({str, bool, type(None)})
_INT_RANGE = range(-(2**63), 2**64)
_NUL = b"\\u0000"
_OPTION_LEVELS = 4  # an option may carry a whole message, as the next one of a pipeline


class Body(msgspec.Struct, omit_defaults=True):
    """What an invocation is called with, and Dramatiq's options of the message."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}


_encode = msgspec.json.Encoder().encode
_encode_in_order = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Body).decode


def decode_body(body: bytes) -> Body:
    """The call in a stored body.

    Raises:
        msgspec.DecodeError: it is damaged, or was written by other code.
    """
    try:
        return _decode(body)
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error


def encode_body(
    args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any], max_depth: int, max_bytes: int
) -> bytes:
    """The stored bytes of a call and of Dramatiq's options of its message.

    Raises:
        NotEncodable, TooDeep, TooLarge: names the argument.
    """
    for position, value in enumerate(args):
        if type(value) not in _PLAIN:
            _check(value, f"args[{position}]", max_depth)
    for name, value in kwargs.items():
        _check(value, name, max_depth)
    for name, value in options.items():
        _check(value, f"option {name}", max_depth + _OPTION_LEVELS)
    try:
        body = _encode(Body(list(args), dict(kwargs), dict(options)))
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
        culprit = _culprit(_named(args, kwargs, options))
        raise NotEncodable(f"{culprit} cannot be written as JSON: {error}") from error
    if _NUL in body:
        for name, value in _named(args, kwargs, options).items():
            _refuse_nul(value, name)
    if len(body) > max_bytes:
        raise TooLarge(
            f"the arguments take {len(body)} bytes as JSON, the limit is {max_bytes}; "
            "pass a reference instead of the data"
        )
    return body


def is_same_call(mine: bytes, theirs: bytes) -> bool:
    """Whether two bodies hold the same arguments; the order of keys is no difference, 1 and true and 1.0 are."""
    try:
        return _call_of(mine) == _call_of(theirs)
    except msgspec.MsgspecError:  # written by other code: not what we were given
        return False


def _call_of(body: bytes) -> bytes:
    call = decode_body(body)
    return _encode_in_order([call.args, call.kwargs])


def _check(value: Any, path: str, depth_left: int) -> None:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise NotEncodable(f"argument {path}={value} is no JSON number; pass a text or None")
        return
    if kind is int:
        if value not in _INT_RANGE:
            raise NotEncodable(f"argument {path} is an integer beyond 64 bits; pass it as a text")
        return
    if isinstance(value, (list, tuple, dict)):
        if depth_left == 0:
            raise TooDeep(
                f"argument {path[:40]}… is nested deeper than the limit (setting max_depth); flatten it or pass a reference"
            )
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise NotEncodable(f"argument {path} has the key {key!r:.40}; JSON keys are texts")
                _check(inner, f"{path}.{key:.40}", depth_left - 1)
        else:
            for position, inner in enumerate(value):
                if type(inner) is not str:
                    _check(inner, f"{path}[{position}]", depth_left - 1)
        return
    if isinstance(value, (str, int, float)):
        return
    raise NotEncodable(
        f"argument {path} is a {kind.__name__}, which JSON cannot carry unchanged; pass texts, numbers, lists or dicts"
    )


def _named(args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of a call by the name that an error shall use."""
    positional = {f"args[{position}]": value for position, value in enumerate(args)}
    return {**positional, **kwargs, **{f"option {name}": value for name, value in options.items()}}


def _culprit(named: Mapping[str, Any]) -> str:
    for name, value in named.items():
        try:
            _encode(value)
        except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
            return f"argument {name}"
    return "the name of an argument"


def _refuse_nul(value: Any, path: str) -> None:
    if isinstance(value, str) and "\0" in value:
        raise NotEncodable(f"argument {path} holds a NUL character; strip it")
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_nul(key, f"{path} (a key)")
            _refuse_nul(inner, f"{path}.{key:.40}")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            _refuse_nul(inner, f"{path}[{position}]")

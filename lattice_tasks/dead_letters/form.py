"""How letters are written to a shelf and read back: JSON under a version number.

Reading never fails: what cannot be read gives the reason, so that one damaged or newer row hides no other.
"""

from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Form"]

L = TypeVar("L", bound=msgspec.Struct)

_VERSION = 1


class _Stored(msgspec.Struct, Generic[L], frozen=True):
    v: int
    letter: L


class _Version(msgspec.Struct, frozen=True):
    v: int


_encoder = msgspec.json.Encoder()
_version_decoder = msgspec.json.Decoder(_Version)


class Form(Generic[L]):
    """The form of one kind of letter."""

    def __init__(self, kind: type[L]) -> None:
        stored: Any = _Stored[kind]  # type: ignore[valid-type]
        self._decoder = msgspec.json.Decoder(stored)

    def encode(self, letter: L) -> bytes:
        """The letter as the shelf stores it."""
        return _encoder.encode(_Stored(_VERSION, letter))

    def decode(self, data: bytes) -> L | str:
        """The letter; or why it cannot be read."""
        try:
            stored = self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _fault(data, error)
        if stored.v > _VERSION:
            return _newer(stored.v)
        letter: L = stored.letter
        return letter


def _fault(data: bytes, error: Exception) -> str:
    try:
        version = _version_decoder.decode(data).v
    except (msgspec.MsgspecError, ValueError, RecursionError):
        version = 0
    return _newer(version) if version > _VERSION else f"it is damaged: {error}"


def _newer(version: int) -> str:
    return f"it was written by newer code (form {version}, known up to {_VERSION}); upgrade lattice-tasks on this host"

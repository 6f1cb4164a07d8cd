"""What a name, an operation id and a time to live may be."""

import unicodedata
from datetime import timedelta

from lattice_tasks import clock
from lattice_tasks.errors import InvalidInput, ReservedName

__all__ = ["require_name", "require_operation", "ttl_us"]

_SYSTEM = "_lattice_"
_MAX_NAME = 255


def require_name(name: str) -> None:
    """The one place where a user's name meets the system's trees; every way to a tree leads through it.

    Raises:
        InvalidInput: no text of 1 to 255 characters, or control characters or lone surrogates in it.
        ReservedName: it begins as the names of system trees do.
    """
    _require_text(name, "tree name")
    if name.startswith(_SYSTEM):
        raise ReservedName(f"tree name {name!r} begins with {_SYSTEM!r}, which is kept for the system; choose another")


def require_operation(operation_id: str) -> None:
    """Refuse what cannot be the id of an operation.

    Raises:
        InvalidInput: no text of 1 to 255 characters, or control characters, lone surrogates or `/` in it.
    """
    _require_text(operation_id, "operation id")
    if "/" in operation_id:
        raise InvalidInput(f"operation id {operation_id!r} must not contain '/'")


def _require_text(text: str, called: str) -> None:
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_NAME:
        raise InvalidInput(f"{called} {text!r:.300} must be a text of 1 to {_MAX_NAME} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise InvalidInput(f"{called} {text!r} must not contain control characters or lone surrogates")


def ttl_us(ttl: timedelta) -> int:
    """Microseconds of a time to live.

    Raises:
        InvalidInput: it is no timedelta, not positive, or longer than ten years.
    """
    if not isinstance(ttl, timedelta):
        raise InvalidInput(f"ttl={ttl!r} must be a timedelta, not {type(ttl).__name__}")
    if ttl <= timedelta(0):
        raise InvalidInput(f"ttl={ttl} must be positive; leave it out for a key that stays")
    return clock.us_of(ttl, "ttl")

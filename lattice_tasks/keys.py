"""Text keys whose order is their meaning, what a key may be, and half-open ranges.

The order is that of the UTF-8 bytes, on both engines (`COLLATE "C"` on Postgres, BINARY on SQLite).
"""

from lattice_tasks.errors import InvalidInput

__all__ = [
    "LAST",
    "MAX_ID",
    "MAX_KEY_BYTES",
    "entry_key",
    "following",
    "id_of",
    "prefix_end",
    "require_bound",
    "require_key",
    "stamp_key",
    "stamp_of",
    "tree_key",
]

#: The highest id that a key can hold: that of a signed 64-bit integer.
MAX_ID = 2**63 - 1

MAX_KEY_BYTES = 1_024

#: Behind every key: the end of a range that has none.
LAST = "\U0010ffff" * (MAX_KEY_BYTES // 4 + 1)

_DIGITS = 19
_WALL_DIGITS, _COUNTER_DIGITS = 20, 10


def entry_key(entry_id: int) -> str:
    """`e/` and the id, zero-padded to 19 digits, so that text order is number order.

    Raises:
        InvalidInput: the id is outside 1 .. 2**63 - 1.
    """
    if not 1 <= entry_id <= MAX_ID:
        raise InvalidInput(f"entry id {entry_id} is outside 1 .. {MAX_ID}")
    return f"e/{entry_id:0{_DIGITS}d}"


def id_of(key: str) -> int | None:
    """The id in an entry key, or None when the key is not one."""
    digits = key[2:]
    if not key.startswith("e/") or len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    entry_id = int(digits)
    return entry_id if 1 <= entry_id <= MAX_ID else None


def prefix_end(prefix: str) -> str | None:
    """The first key after every key with this prefix, so that [prefix, end) holds just those; None: no end."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < 0x10FFFF:
            following = code + 1
            return prefix[:at] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)
    return None


def stamp_key(wall: int, counter: int) -> str:
    """A stamp as text: the wall in 20 digits, the counter in 10, so that text order is stamp order.

    Raises:
        InvalidInput: one of them has no place there.
    """
    if not (0 <= wall <= MAX_ID and 0 <= counter < 2**31):
        raise InvalidInput(f"stamp ({wall}, {counter}) is outside (0, 0) .. ({MAX_ID}, {2**31 - 1})")
    return f"{wall:0{_WALL_DIGITS}d}{counter:0{_COUNTER_DIGITS}d}"


def stamp_of(key: str) -> tuple[int, int] | None:
    """Wall and counter of a stamp's text, or None when it is not one."""
    if len(key) != _WALL_DIGITS + _COUNTER_DIGITS or not (key.isascii() and key.isdigit()):
        return None
    wall, counter = int(key[:_WALL_DIGITS]), int(key[_WALL_DIGITS:])
    return (wall, counter) if wall <= MAX_ID and counter < 2**31 else None


def tree_key(namespace_id: int, tree: str = "") -> str:
    """The name under which a user's tree is registered; without a tree, the prefix of all those of the namespace.

    So no name that a user gives is ever that of a system tree, nor that of another namespace's.
    """
    return f"t/{namespace_id}/{tree}"


def following(key: str) -> str:
    """The first key that can come after this one: no key holds NUL, so none lies between."""
    return key + "\x01"


def require_key(key: str) -> None:
    """Refuse what cannot be a key of a tree.

    Raises:
        InvalidInput: it is no text of 1 to 1,024 bytes, or holds NUL or half of a surrogate pair.
    """
    require_bound(key, "key")
    if not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise InvalidInput(f"key {key!r:.40} has {len(key.encode())} bytes; a key has 1 to {MAX_KEY_BYTES}")


def require_bound(bound: str, name: str) -> None:
    """Refuse what cannot be compared with keys; an end may be a little longer than a key, and a start empty.

    Raises:
        InvalidInput: with the argument's name.
    """
    if not isinstance(bound, str):
        raise InvalidInput(f"{name}={bound!r:.40} must be a text, not {type(bound).__name__}")
    try:
        size_bytes = len(bound.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} {bound!r:.40} holds half of a surrogate pair, which UTF-8 cannot write") from None
    if "\0" in bound:
        raise InvalidInput(f"{name} {bound!r:.40} holds a NUL, which no key may")
    if size_bytes > 2 * MAX_KEY_BYTES:
        raise InvalidInput(f"{name} {bound!r:.40} has {size_bytes} bytes; a key has at most {MAX_KEY_BYTES}")

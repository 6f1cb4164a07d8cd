"""Text keys whose order is their meaning, and half-open prefix ranges.

The order is that of the UTF-8 bytes, on both engines (`COLLATE "C"` on Postgres, BINARY on SQLite).
"""

from lattice_tasks.errors import InvalidInput

__all__ = ["MAX_ID", "entry_key", "id_of", "prefix_end"]

#: The highest id that a key can hold: that of a signed 64-bit integer.
MAX_ID = 2**63 - 1

_DIGITS = 19


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

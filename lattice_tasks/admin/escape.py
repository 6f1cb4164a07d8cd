"""Text from tasks made harmless for a terminal, a spreadsheet and a JSON reader.

Names, errors and arguments come from outside. Shown as they are, they could move the cursor, recolour or rename the
window of whoever looks, hide behind reversed writing, or run as a formula.
"""

import re

__all__ = ["json_safe", "one_line", "spreadsheet_safe", "visible"]

#: C0 and C1 controls, delete, line and paragraph separators, marks that turn the direction of writing or show nothing,
#: and halves of surrogate pairs, which no stream can encode.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, keep: str = "") -> str:
    r"""The text with every unsafe character written out (`\x1b`, `\u202e`), except those in `keep`."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _written(found[0]), text)


def one_line(text: str) -> str:
    """The text on one line, fit for a message: white space joined, the rest made visible."""
    return visible(" ".join(text.split()))


def spreadsheet_safe(text: str) -> str:
    """The text as a CSV cell that no spreadsheet takes for a formula."""
    shown = visible(text)
    return "'" + shown if shown.startswith(_FORMULA) or text.startswith(_FORMULA) else shown


def json_safe(encoded: str) -> str:
    """Encoded JSON whose strings hold no unsafe character as itself; it still decodes to the very same value."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", encoded)


def _written(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")

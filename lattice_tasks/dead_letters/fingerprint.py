"""What makes two dead letters the same trouble: the actor, the kind of error, its message without what varies, the place.

Pure, and versioned: a changed rule gets a new number, so that a group never mixes two rules.
"""

import hashlib
import re

__all__ = ["VERSION", "error_class_of", "fingerprint", "frames_of", "normalised"]

VERSION = 1

_FRAMES = 3
_MAX_MESSAGE = 300
_VARYING = (
    (re.compile(r"\b[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`"), "<text>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{7,}\b"), "<hex>"),
    (re.compile(r"\d+(?:[.,:\-/]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)
_CLASS = re.compile(r"[A-Za-z_]\w*(?=:|$)")
_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*)(?=:|$)", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"]*)", line \d+, in (.+)$', re.MULTILINE)
_SLASH = re.compile(r"[/\\]")
#: Whoever fails, it is seldom these: the interpreter, what was installed, and the way into the task.
_NOT_THEIRS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "/lattice_tasks/")


def fingerprint(actor: str, error: str, traceback: str) -> str:
    """16 hex digits; letters with the same ones form a group."""
    parts = (str(VERSION), actor, error_class_of(error, traceback), normalised(error), *frames_of(traceback))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def normalised(error: str) -> str:
    """The error's text with ids, numbers, hex, quoted text and white space made alike, at most 300 characters."""
    text = error[: 4 * _MAX_MESSAGE]
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text.strip()[:_MAX_MESSAGE]


def error_class_of(error: str, traceback: str) -> str:
    """The exception's class without its module; empty when it was no exception.

    The traceback says it for certain: a message may begin with a word and a colon, too.
    """
    said = _CLASS.match(error)
    told = [name.rpartition(".")[2] for name in _LAST_LINE.findall(traceback)]
    if said and (said[0] in told or (not told and said[0][0].isupper() and ":" in error)):
        return said[0]
    return told[-1] if told else ""


def frames_of(traceback: str) -> list[str]:
    """The last three frames of the user's own code, `file:function`, the innermost first; any code's when there are none."""
    frames = _FRAME.findall(traceback)
    theirs = [frame for frame in frames if not any(mark in frame[0] for mark in _NOT_THEIRS)]
    last = reversed((theirs or frames)[-_FRAMES:])
    return [f"{_SLASH.split(path)[-1]}:{function}" for path, function in last]

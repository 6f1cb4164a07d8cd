"""A dead letter: the whole message of an invocation that failed for good, why, where, and all its earlier lives.

The values, and how they are written to the shelf and read back. Reading never fails: what cannot be read is shown as
such, with its bytes, so that one damaged or newer row hides no other.
"""

from datetime import datetime
from typing import Annotated

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters.form import Form

__all__ = [
    "MAX_ERROR_BYTES",
    "MAX_LIVES",
    "MAX_NOTES",
    "MAX_TRACEBACK_BYTES",
    "PARKED",
    "REASONS",
    "REPLAY_FAILED",
    "REPLAY_LOST",
    "RESTORED",
    "WORKER_DIED",
    "DeadLetter",
    "Life",
    "Note",
    "Redirected",
    "cleaned",
    "decode",
    "encode",
    "with_life",
    "with_note",
]

#: Why an invocation is parked; a closed set, for metrics and filters.
REASONS = ("schema", "unknown", "actor_not_found", "worker_lost", "time_limit", "oversized", "rejected")

#: How a life ended: on the shelf for the first time, or there again after a replay.
PARKED, REPLAY_FAILED, REPLAY_LOST = "parked", "replay failed", "replay lost its worker"
#: No life of its own: the same failure once more, when the letter was brought back from the bin.
RESTORED = "restored"
#: The error of every letter with the reason `worker_lost`: without host and counts, so that one trouble is one group.
WORKER_DIED = "its worker process died while running it"

MAX_ERROR_BYTES = 4_096
MAX_TRACEBACK_BYTES = 32_768
#: Lives kept besides the last; replayed more often, the oldest are forgotten, and counted.
MAX_LIVES = 20
#: Notes kept; the oldest go first.
MAX_NOTES = 20

_LIMITS = (("error", MAX_ERROR_BYTES), ("traceback", MAX_TRACEBACK_BYTES), ("worker", 512))
_CUT = "\n[… left out …]\n"
_NEVER = clock.from_us(0)

Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Life(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One life of an invocation: from submit or replay to the shelf.

    Attributes:
        reason: one of `REASONS`.
        error: cleaned, at most 4 KiB.
        traceback: cleaned, at most 32 KiB; empty when there is none.
        attempts: failed attempts that were charged when it ended.
        worker: host:pid and incarnation of who ran it last; empty when nobody did.
        version: of this package, there.
        ended: `parked`, `replay failed` or `replay lost its worker`.
        parked_at: by the store's clock; set by whoever puts it on the shelf.
    """

    reason: str
    error: str
    traceback: str = ""
    attempts: int
    worker: str = ""
    version: str = ""
    ended: str = PARKED
    parked_at: Instant = _NEVER

    def __post_init__(self) -> None:
        for name, limit in _LIMITS:
            msgspec.structs.force_setattr(self, name, cleaned(getattr(self, name), limit))


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a letter without being a failure: a replay of it was cancelled. `at` is by the store's clock."""

    at: Instant
    text: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", cleaned(self.text, MAX_ERROR_BYTES))


class Redirected(msgspec.Struct, frozen=True, kw_only=True):
    """What a letter was before it was replayed under other names."""

    queue: str
    actor: str


class DeadLetter(Life, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of a shelf. Its own reason, error and so on are those of the last life; `lives` holds the earlier ones.

    Attributes:
        entry_id: its place on the shelf; never issued again. Set by the shelf.
        task_id: the invocation's id; empty when the entry cannot be read.
        seq: the same invocation inside the store; 0 when the entry cannot be read.
        body: the message, byte for byte; of an entry that cannot be read, the entry.
        priority: higher first.
        lives: earlier lives, oldest first.
        forgotten_lives: how many more there were between the first and those.
        notes: what else happened to it, oldest first; no failures, so nothing of the last life changes.
        redirects: what it was before each redirect, oldest first; `queue` and `actor` are what it is now.
        is_replaying: pinned, while a replay of it waits or runs. Set by the shelf.
    """

    task_id: str
    seq: int
    queue: str
    actor: str
    body: bytes
    key: str | None = None
    priority: int = 0
    submitted_at: Instant
    lives: tuple[Life, ...] = ()
    forgotten_lives: int = 0
    notes: tuple[Note, ...] = ()
    redirects: tuple[Redirected, ...] = ()
    entry_id: int = 0
    is_replaying: bool = False

    @property
    def failed_replays(self) -> int:
        """How many replays of it have failed: every life but the first."""
        restores = sum(life.ended == RESTORED for life in (*self.lives, self))
        return len(self.lives) + self.forgotten_lives - restores

    @property
    def is_readable(self) -> bool:
        """False: the entry is damaged or was written by newer code; it can be looked at and discarded."""
        return self.seq > 0


_form = Form(DeadLetter)


def cleaned(text: str, limit: int) -> str:
    """The text, fit for every store, log and screen that speaks UTF-8, in at most `limit` bytes.

    NUL and lone surrogates become visible escapes. A longer text loses its middle: an error begins with what
    happened, a traceback ends with where. Cleaning twice changes nothing.

    Args:
        text: of an exception, so anything.
        limit: bytes of UTF-8, at least 64.
    """
    if len(text) <= limit:
        whole = _printable(text)
        if len(whole) <= limit:
            return whole.decode()
    half = (limit - len(_CUT.encode())) // 2
    first, last = _printable(text[:half])[:half], _printable(text[-half:])[-half:]
    return first.decode("utf-8", "ignore") + _CUT + last.decode("utf-8", "ignore")


def encode(letter: DeadLetter) -> bytes:
    """The letter as the shelf stores it; its place and its pin are the shelf's to know.

    Raises:
        NaiveInstant: an instant has no zone.
    """
    clock.aware(letter.submitted_at, "submitted_at")
    clock.aware(letter.parked_at, "parked_at")
    bare = msgspec.structs.replace(letter, entry_id=0, is_replaying=False)
    return _form.encode(bare)


def decode(entry_id: int, data: bytes, is_replaying: bool = False) -> DeadLetter:
    """The letter in a row of the shelf; one that says what is wrong, when the row cannot be read."""
    letter = _form.decode(data)
    if isinstance(letter, str):
        return _unreadable(entry_id, data, is_replaying, letter)
    return msgspec.structs.replace(letter, entry_id=entry_id, is_replaying=is_replaying)


def with_life(letter: DeadLetter, life: Life) -> DeadLetter:
    """The letter after one more life: its last life joins the earlier ones, the new one takes its place."""
    names = Life.__struct_fields__
    lives = (*letter.lives, Life(**{name: getattr(letter, name) for name in names}))
    surplus = max(0, len(lives) - MAX_LIVES)
    return msgspec.structs.replace(
        letter,
        **{name: getattr(life, name) for name in names},
        lives=lives[:1] + lives[1 + surplus :],
        forgotten_lives=letter.forgotten_lives + surplus,
    )


def with_note(letter: DeadLetter, note: Note) -> DeadLetter:
    """The letter with one more note, its last life as it was."""
    return msgspec.structs.replace(letter, notes=(*letter.notes, note)[-MAX_NOTES:])


def _printable(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace").replace(b"\0", rb"\x00")


def _unreadable(entry_id: int, data: bytes, is_replaying: bool, why: str) -> DeadLetter:
    return DeadLetter(
        reason="schema",
        error=f"entry {entry_id} cannot be read: {why}",
        attempts=0,
        task_id="",
        seq=0,
        queue="",
        actor="",
        body=data,
        submitted_at=_NEVER,
        entry_id=entry_id,
        is_replaying=is_replaying,
    )

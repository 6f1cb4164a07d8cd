"""The dead letter of a change to a tree that could not be applied: the whole record, and why.

What a record is, its reader knows; here it is bytes, with the facts of it that people filter and read by.
"""

from collections.abc import Mapping

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import Life
from lattice_tasks.dead_letters.form import Form

__all__ = ["RECORD_REASONS", "RecordLetter", "decode_record", "encode_record"]

#: Why a record is parked; a closed set. `hlc_skew`: it had to leave a full buffer of records that wait for others;
#: `oversized` is kept for later.
RECORD_REASONS = (
    "schema", "unknown", "hlc_skew", "mode_mismatch", "foreign_tenant", "tenant_offline", "tenant_suspended", "oversized",
)  # fmt: skip


class RecordLetter(Life, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of a tree's shelf; its reason, error, attempts and `parked_at` are those of every dead letter.

    Attributes:
        record: byte for byte; of an entry that cannot be read, the entry.
        facts: of the record, such as its key, operation and origin.
        entry_id: its place on the shelf; never issued again. Set by the shelf.
        is_readable: False: the entry is damaged or was written by newer code; it can be looked at and discarded.
    """

    record: bytes
    facts: Mapping[str, str | int | None] = {}
    entry_id: int = 0
    is_readable: bool = True


_form = Form(RecordLetter)


def encode_record(letter: RecordLetter) -> bytes:
    """The letter as the shelf stores it.

    Raises:
        NaiveInstant: `parked_at` has no zone.
    """
    clock.aware(letter.parked_at, "parked_at")
    return _form.encode(msgspec.structs.replace(letter, entry_id=0))


def decode_record(entry_id: int, data: bytes) -> RecordLetter:
    """The letter in a row of the shelf; one that says what is wrong, when the row cannot be read."""
    letter = _form.decode(data)
    if isinstance(letter, str):
        error = f"entry {entry_id} cannot be read: {letter}"
        return RecordLetter(reason="schema", error=error, attempts=0, record=data, entry_id=entry_id, is_readable=False)
    return msgspec.structs.replace(letter, entry_id=entry_id)

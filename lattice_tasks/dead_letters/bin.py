"""What leaves a shelf without having been replayed goes into the bin, in the same transaction, and can come back."""

from collections.abc import Iterable

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters import entry
from lattice_tasks.dead_letters.entry import RESTORED, DeadLetter, Life
from lattice_tasks.fifo import Row
from lattice_tasks.store import bin as rows
from lattice_tasks.store.engine import Session

__all__ = ["AGED", "DISCARDED", "EVICTED", "keep", "restored"]

#: How a letter came into the bin: by an operator, by a full shelf, by its age.
DISCARDED, EVICTED, AGED = "discarded", "evicted", "aged"


def keep(session: Session, queue_id: int, gone: Iterable[Row], why: str) -> None:
    """Keep the letters in these rows of a shelf, byte for byte."""
    kept = []
    for row in gone:
        letter = entry.decode(row.entry_id, row.value)
        facts = (letter.task_id, letter.actor, letter.reason, letter.error)
        kept.append(rows.NewBinRow(row.entry_id, letter.seq, *facts, why, row.value))
    rows.keep(session, queue_id, kept)


def restored(letter: DeadLetter, seq: int, now_us: int) -> DeadLetter:
    """The letter as it goes back: the same failure, and in its lives a note of when it came back."""
    names = Life.__struct_fields__
    same = {name: getattr(letter, name) for name in names}
    note = Life(**{**same, "ended": RESTORED, "parked_at": clock.from_us(now_us)})
    return msgspec.structs.replace(entry.with_life(letter, note), seq=seq)

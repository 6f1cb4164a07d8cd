"""Letting a letter belong to another queue or actor while it is replayed; its message stays as it was, byte for byte."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters import entry
from lattice_tasks.dead_letters.entry import DeadLetter, Redirected
from lattice_tasks.dead_letters.parking import card_of, shelf_fifo
from lattice_tasks.errors import Conflict
from lattice_tasks.store import letters as cards
from lattice_tasks.store.engine import Session

__all__ = ["Destination", "hold_shelves", "redirect"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a letter shall belong; `capacity` is that of the queue's shelf."""

    queue_id: int
    queue: str
    actor: str
    capacity: int


def hold_shelves(session: Session, queue_ids: Iterable[int]) -> None:
    """Lock several shelves until the transaction ends, in the one order in which everybody does."""
    for queue_id in sorted(set(queue_ids)):
        with shelf_fifo(session, queue_id).held():
            pass


def redirect(session: Session, queue_id: int, letter: DeadLetter, to: Destination) -> DeadLetter:
    """Let a pinned letter of a queue belong elsewhere, pinned; it says what it was. Both shelves are held already.

    Returns:
        The letter as it now is: on another shelf it has a new entry id.

    Raises:
        Conflict: the other shelf has no room; nobody is evicted for a letter that moves.
    """
    was = Redirected(queue=letter.queue, actor=letter.actor)
    moved = msgspec.structs.replace(letter, queue=to.queue, actor=to.actor, redirects=(*letter.redirects, was))
    if to.queue_id == queue_id:
        with shelf_fifo(session, queue_id).held() as held:
            held.replace({letter.entry_id: entry.encode(moved)})
            cards.drop(session, queue_id, [letter.entry_id])
            cards.put_back(session, queue_id, [card_of(moved, letter.entry_id, clock.to_us(letter.parked_at))])
        return moved
    with shelf_fifo(session, queue_id).held() as held:
        held.remove([letter.entry_id])
        cards.drop(session, queue_id, [letter.entry_id])
    with shelf_fifo(session, to.queue_id).held() as held:
        (entry_id,) = held.append([entry.encode(moved)], to.capacity, evicts=False).ids
        if entry_id is None:
            raise Conflict(
                f"dead letter {letter.entry_id} cannot move to queue {to.queue!r}: its shelf is full ({to.capacity})"
            )
        held.pin([entry_id])
        cards.put_back(session, to.queue_id, [card_of(moved, entry_id, clock.to_us(letter.parked_at))])
    return msgspec.structs.replace(moved, entry_id=entry_id)

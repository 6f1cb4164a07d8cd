"""A queue as one worker process serves it, and how free threads are shared among several.

Look ahead in time, not in count: for free threads, plus only as many more as finish within a moment at the queue's recent
run time. So a tiny task costs no round trip, and a long one never holds back an urgent one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue

from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.dead_letters.parking import REFUSE, ShelfSpec
from lattice_tasks.store.turns import Want

__all__ = ["Lane", "share"]

_FULL_LOOK_S = 0.25


@dataclass(slots=True)
class Lane:
    """One queue.

    Attributes:
        feed: claimed messages for Dramatiq's consumer thread to fetch, as long as it does not take them at once.
        take: the consumer thread's own way to take a message, when it is there and not paused.
        floor: where the next claim begins to look; skips dead index entries, 0 finds everything.
        looked_at: when a claim last looked from the start.
        has_more: whether there may be work: the last claim was full, or a wake-up came.
        mean_s: recent mean run time; None before the first.
    """

    name: str
    queue_id: int
    shelf: ShelfSpec
    feed: Queue[LatticeMessage] = field(default_factory=Queue)
    take: Callable[[LatticeMessage], bool] = lambda _message: False
    floor: int = 0
    looked_at: float = 0.0
    has_more: bool = True
    mean_s: float | None = None

    def hand_over(self, message: LatticeMessage) -> None:
        """Give a message to its consumer thread's `handle_message` from here: waking that thread first costs a tenth of
        a millisecond, and while it is paused it finds the message in the feed."""
        if not self.take(message):
            self.feed.put(message)

    def measure(self, run_s: float) -> None:
        """Take a run time into the recent mean."""
        self.mean_s = run_s if self.mean_s is None else 0.9 * self.mean_s + 0.1 * run_s

    def ahead(self, threads: int, lookahead_s: float, most: int) -> int:
        """How many more than the free threads may be claimed: what finishes within `lookahead_s`."""
        if self.mean_s is None:
            return 0
        return min(most, int(threads * lookahead_s / max(self.mean_s, 1e-6)))

    def wake(self) -> None:
        """There is work, perhaps below the floor."""
        self.has_more = True
        self.floor = 0

    def want(self, limit: int) -> Want:
        """A claim; what wakes this lane from now on is about work that the claim may not see."""
        self.has_more = False
        return Want(self.queue_id, limit, self.floor, self.shelf.on_full == REFUSE)

    def note(self, want: Want, seqs: Sequence[int], now: float, cost_s: float) -> bool:
        """Remember what a claim brought; whether it was full.

        The floor is a hint. What appeared below it is found by a look from the start, at most a twentieth of the time.
        """
        is_full = len(seqs) >= want.limit
        if want.floor == 0:
            self.looked_at = now
        self.has_more = self.has_more or is_full or want.floor > 0
        is_due = now - self.looked_at >= max(_FULL_LOOK_S, 20 * cost_s)
        self.floor = max(seqs) if is_full and not is_due else 0
        return is_full

    def take_back(self) -> list[LatticeMessage]:
        """Everything that the consumer thread has not taken yet."""
        messages = []
        while True:
            try:
                messages.append(self.feed.get_nowait())
            except Empty:
                return messages


def share(lanes: Sequence[Lane], free: int, aheads: dict[int, int], turn: int) -> list[Want]:
    """Claims that fill `free` threads round robin, beginning with another lane each turn, and each lane's look-ahead.

    The lane that begins may always claim one: else what another lane looks ahead would keep it from every thread.
    """
    first = turn % len(lanes) if lanes else 0
    wants = []
    for position, lane in enumerate([*lanes[first:], *lanes[:first]]):
        threads = free // len(lanes) + (1 if position < free % len(lanes) else 0)
        limit = max(threads + aheads.get(lane.queue_id, 0), 0 if position else 1)
        if limit > 0:
            wants.append(lane.want(limit))
    return wants

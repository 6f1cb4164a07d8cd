"""Several queues side by side where one head is too slow: a producer's key always leads to the same one."""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Generic, TypeVar

from lattice_tasks.errors import InvalidInput
from lattice_tasks.fifo.cancellation import Cancellation
from lattice_tasks.fifo.queue import LatticeQueue, require_name

__all__ = ["MOST_LANES", "FifoLanes", "lane_of"]

T = TypeVar("T")

MOST_LANES = 1_024


class FifoLanes(Generic[T]):
    """Independent queues `NAME/0`, `NAME/1`, …: order holds for each key, not between lanes. Iterate to get them all.

    Which lane a key leads to depends on the key and the number of lanes alone. Another number sends keys elsewhere:
    drain the lanes before, where order counts.

    Args:
        open_lane: makes the queue of a name.
        lanes: how many, 1 to 1,024.

    Raises:
        InvalidInput, ReservedName: the number or the name is not acceptable.
    """

    def __init__(self, open_lane: Callable[[str], LatticeQueue[T]], name: str, lanes: int) -> None:
        require_name(name)
        if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= MOST_LANES:
            raise InvalidInput(f"lanes={lanes!r} of queue {name!r} must be a whole number from 1 to {MOST_LANES}")
        self.name = name
        self._lanes = tuple(open_lane(f"{name}/{number}") for number in range(lanes))

    def __repr__(self) -> str:
        return f"FifoLanes({self.name!r}, lanes={len(self._lanes)})"

    def __iter__(self) -> Iterator[LatticeQueue[T]]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def lane(self, key: str) -> LatticeQueue[T]:
        """The queue of this key.

        Raises:
            InvalidInput: the key is no text.
        """
        return self._lanes[lane_of(key, len(self._lanes))]

    def enqueue(self, key: str, item: T, *, cancellation: Cancellation | None = None) -> int:
        """Append at the tail of the key's lane; returns the id in that lane. Raises like `LatticeQueue.enqueue`."""
        return self.lane(key).enqueue(item, cancellation=cancellation)

    def count(self, *, cancellation: Cancellation | None = None) -> int:
        """How many entries wait in all lanes together, each lane counted at a moment of its own."""
        return sum(lane.count(cancellation=cancellation) for lane in self._lanes)


def lane_of(key: str, lanes: int) -> int:
    """0 to lanes - 1, the same in every process: Python's own `hash` has another seed in each.

    Raises:
        InvalidInput: the key is no text, or holds half a surrogate pair.
    """
    try:
        data = key.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"lane key {key!r} must be a text without lone surrogates") from error
    return int.from_bytes(blake2b(data, digest_size=8).digest()) % lanes

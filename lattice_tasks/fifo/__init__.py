"""One engine under every FIFO buffer: `Fifo` over bytes, `LatticeQueue`, the typed queue that users see, and its lanes.

Made for control data, dead letters and diagnostics: one head is the ceiling of a queue's rate, by design; `FifoLanes`
has several. A dequeue removes the entry before the caller has worked on it; work that must not be lost is a task, or is
done in the same transaction (`Lattice.transaction`).
"""

from lattice_tasks.fifo.cancellation import Cancellation
from lattice_tasks.fifo.engine import Appended, Fifo, Held, Row
from lattice_tasks.fifo.lanes import FifoLanes
from lattice_tasks.fifo.queue import JSON, LatticeQueue, QueueEntry, Serializer, require_capacity, require_name

__all__ = [
    "JSON",
    "Appended",
    "Cancellation",
    "Fifo",
    "FifoLanes",
    "Held",
    "LatticeQueue",
    "QueueEntry",
    "Row",
    "Serializer",
    "require_capacity",
    "require_name",
]

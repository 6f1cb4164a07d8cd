"""Why one that rests will not go on: how it ended, and where it lies."""

import shlex
from collections.abc import Iterator

from lattice_tasks.dead_letters.parking import REFUSE, shelf_fifo
from lattice_tasks.why.scene import PROGRAM, Reason, Scene, at

__all__ = ["ended", "held", "parked"]


def ended(scene: Scene) -> Iterator[Reason]:
    """It succeeded, was cancelled or discarded, or expired."""
    task = scene.task
    text = f"it is {task.state} since {at(task.finished_at)}" + (f": {task.error}" if task.error else "")
    facts = {"at": task.finished_at, "error": task.error, "attempt": task.attempt}
    todo = None
    if task.replaced_by is not None:
        text += f"; its dead letter was edited: task {task.replaced_by} goes on in its place"
        facts["replaced_by"], todo = task.replaced_by, f"{PROGRAM} tasks why {task.replaced_by}"
    yield Reason(task.state.value, text, facts, todo)


def parked(scene: Scene) -> Iterator[Reason]:
    """It failed for good, and its dead letter waits for somebody."""
    task, queue = scene.task, scene.queue
    rows = shelf_fifo(scene.session, queue.id).get([task.entry_id or 0])
    facts = {
        "entry_id": task.entry_id,
        "queue": queue.name,
        "reason": scene.reason,
        "error": task.error,
        "attempt": task.attempt,
        "at": task.finished_at,
        "is_pinned": bool(rows and rows[0].is_pinned),
    }
    text = f"it failed for good and is parked as {scene.reason} since {at(task.finished_at)}: {task.error}"
    if not rows:
        text += "; but its dead letter is missing"
        yield Reason("parked", text, facts, f"{PROGRAM} db check")
        return
    text += f"; dead letter {task.entry_id} on the shelf of queue {queue.name}"
    yield Reason("parked", text, facts, f"{PROGRAM} dlq replay {task.entry_id} --queue {shlex.quote(queue.name)}")


def held(scene: Scene) -> Iterator[Reason]:
    """It failed for good, and the shelf has no place for its dead letter."""
    queue = scene.queue
    capacity = queue.dlq_capacity or scene.settings.shelf_capacity
    full = "refuses more" if queue.dlq_on_full == REFUSE else "can evict none, for all are being replayed"
    text = f"it failed for good, and is held: the shelf of queue {queue.name} has {queue.depth.parked} of {capacity} "
    text += f"dead letters and {full}; it is parked as soon as there is room: {scene.task.error}"
    facts = {
        "queue": queue.name,
        "parked": queue.depth.parked,
        "capacity": capacity,
        "on_full": queue.dlq_on_full,
        "held": queue.depth.held,
        "reason": scene.reason,
        "error": scene.task.error,
    }
    yield Reason("held", text, facts, f"{PROGRAM} dlq discard ID --queue {shlex.quote(queue.name)}")

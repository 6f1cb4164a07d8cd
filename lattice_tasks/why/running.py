"""Why one that is leased has not finished, or not even started."""

from collections.abc import Iterator
from typing import Any

from lattice_tasks import clock
from lattice_tasks.insights import WorkerPicture
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.why.scene import PROGRAM, Reason, Scene, at, name_of, replaying, suspect_of

__all__ = ["running"]

_STUCK_S = 1.0  # look-ahead that no thread starts is handed back well before (`broker/pump.py`)


def running(scene: Scene) -> Iterator[Reason]:
    """It is leased to a worker."""
    task = scene.task
    worker = next((each for each in scene.workers if each.id == task.worker_id), None)
    if worker is None:
        text = f"it is leased to worker {task.worker_id}, which is not registered: nobody will free it"
        yield Reason("lease_lost", text, {"worker": task.worker_id}, f"{PROGRAM} db check")
        return
    if scene.is_silent(worker):
        yield _silent(scene, worker)
    if task.cancel_requested:
        beat_s = scene.settings.beat_ms / 1_000
        text = f"its cancel ({task.error or 'no reason given'}) was asked for; {name_of(worker)} learns of it with its next "
        text += f"beat (every {beat_s:g} s) and interrupts it; a call that blocks ends first"
        yield Reason("cancel_requested", text, {"reason": task.error, "worker": worker.id, "beat_s": beat_s})
    yield _leased(scene, worker)
    if task.is_replay:
        yield replaying(scene)


def _leased(scene: Scene, worker: WorkerPicture) -> Reason:
    claimed_at = scene.task.started_at or scene.now
    age_s = max(0.0, scene.seconds_since(claimed_at))
    facts: dict[str, Any] = {
        "worker": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "since": claimed_at,
        "heartbeat_age_s": round(worker.silent_s, 3),
    }
    tail = f"{name_of(worker)} since {at(claimed_at)} ({age_s:.1f} s; last heartbeat {worker.silent_s:.1f} s ago)"
    suspect = suspect_of(scene, worker.id)
    own = next((one for one in scene.suspects if one.task_id == scene.task.id), None)
    if own is not None and not own.flags & Flag.STARTED:
        text = f"it is a suspect and waits to run alone: leased to {tail}, which lets what runs there end first"
        return Reason("suspect_waits", text, facts | {"is_started": False})
    if own is None and suspect is not None and clock.from_us(suspect.claimed_at) <= claimed_at:
        text = f"it waits for suspect {suspect.task_id}, which runs alone there: leased to {tail}"
        return Reason("suspect_alone", text, facts | {"is_started": False, "tasks": [suspect.task_id]})
    if own is None and worker.running > worker.threads and age_s < _STUCK_S:
        text = f"it was claimed ahead, perhaps, for threads that still have work: leased to {tail}"
        return Reason("looked_ahead", text, facts | {"is_started": None})
    return Reason("running", f"it runs on {tail}", facts | {"is_started": True})


def _silent(scene: Scene, worker: WorkerPicture) -> Reason:
    """A living worker buries it when its heartbeat has stood still for a lease, measured by that one's own clock."""
    seen = f"{name_of(worker)} has not been seen for {worker.silent_s:.1f} s"
    watched_s = [
        min(worker.silent_s, max(0.0, scene.seconds_since(each.started_at)))
        for each in scene.live
        if each.id != worker.id
    ]
    facts = {"worker": worker.id, "silent_s": round(worker.silent_s, 3), "lease_s": scene.settings.lease_ms / 1_000}
    if not watched_s:
        text = f"{seen}, and no other worker is there to take its tasks over"
        return Reason("worker_silent", text, facts | {"rescued_within_s": None}, f"{PROGRAM} worker APP")
    within_s = max(0.0, (scene.settings.lease_ms + 2 * scene.settings.beat_ms) / 1_000 - max(watched_s))
    text = f"{seen}; unless it comes back, its tasks will be rescued within {within_s:.1f} s"
    return Reason("worker_silent", text, facts | {"rescued_within_s": round(within_s, 3)})

"""What bears on one invocation: itself, its queue, the workers, and the words in which reasons speak of them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lattice_tasks import clock, insights
from lattice_tasks.errors import TaskNotFound
from lattice_tasks.insights import QueuePicture, TaskPicture, WorkerPicture
from lattice_tasks.settings import Settings
from lattice_tasks.store import standings
from lattice_tasks.store.engine import Session
from lattice_tasks.store.standings import Suspect
from lattice_tasks.tasks.invocation import Flag, State

__all__ = ["PROGRAM", "Reason", "Scene", "at", "look", "name_of", "replaying", "suspect_of"]

PROGRAM = "lattice-tasks"  # what a command of advice begins with
_LOOKS = 5
_SLACK_MS = 1_000  # a beat may be late on a busy machine
_PROVEN_S = 5.0  # a suspect that has run so long keeps nobody waiting (`broker/quarantine.py`)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: a stable code, a sentence, the ids and numbers in it, and what to do where something can be done."""

    code: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    todo: str | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that bears on one invocation."""

    session: Session
    task: TaskPicture
    seq: int
    place: str | None
    unknown_since: datetime | None
    reason: str | None
    max_retries: int | None
    now: datetime
    queue: QueuePicture
    workers: list[WorkerPicture]
    suspects: list[Suspect]
    settings: Settings

    def seconds_since(self, instant: datetime) -> float:
        """How long ago it was by the store's clock; negative: it is still to come."""
        return (self.now - instant).total_seconds()

    def is_silent(self, worker: WorkerPicture) -> bool:
        """Whether it has missed beats: it may be dead, and nobody knows yet."""
        return worker.silent_s * 1_000 > 2 * self.settings.beat_ms + _SLACK_MS

    @property
    def live(self) -> list[WorkerPicture]:
        """Those that nobody would take for dead yet."""
        return [worker for worker in self.workers if worker.silent_s * 1_000 <= self.settings.lease_ms]

    @property
    def serving(self) -> list[WorkerPicture]:
        """Live ones that were started for the queue, whether or not they still take work."""
        return [worker for worker in self.live if self.queue.name in worker.queues]

    @property
    def takers(self) -> list[WorkerPicture]:
        """Those of them that still take work."""
        return [worker for worker in self.serving if worker.state == "active"]


def look(session: Session, namespace_id: int, task_id: str, settings: Settings) -> Scene:
    """All of it as it is now.

    Raises:
        TaskNotFound: no such id in the namespace.
    """
    for _ in range(_LOOKS):  # until it did not move between two looks
        detail = insights.show_task(session, namespace_id, task_id)
        found = standings.standing_of(session, namespace_id, detail.task.id)
        if found is not None and State.of(found.state, found.place) is detail.task.state:
            break
    if found is None:
        raise TaskNotFound(f"no task {task_id}; it was removed just now")
    limit = detail.options.get("max_retries")
    (queue,) = insights.queue_depth(session, namespace_id, detail.task.queue, settings.lease_ms)
    return Scene(
        session=session,
        task=detail.task,
        seq=found.seq,
        place=found.place,
        unknown_since=None if found.unknown_since is None else clock.from_us(found.unknown_since),
        reason=found.reason,
        max_retries=limit if isinstance(limit, int) else None,
        now=clock.from_us(found.now_us),
        queue=queue,
        workers=insights.list_workers(session, namespace_id),
        suspects=standings.leased_suspects(session, namespace_id),
        settings=settings,
    )


def suspect_of(scene: Scene, worker_id: int) -> Suspect | None:
    """The suspect that keeps everything else of a worker waiting; None: none, or it has proved harmless."""
    for one in scene.suspects:
        age_s = scene.seconds_since(clock.from_us(one.claimed_at))
        if one.worker_id == worker_id and (not one.flags & Flag.STARTED or age_s < _PROVEN_S):
            return one
    return None


def replaying(scene: Scene) -> Reason:
    """It is a replay, which is one attempt."""
    entry_id, queue = scene.task.entry_id, scene.queue.name
    text = f"it is a replay: its one attempt decides about dead letter {entry_id} of queue {queue}, pinned meanwhile"
    return Reason("replay", text, {"entry_id": entry_id, "queue": queue})


def at(instant: datetime | None) -> str:
    """An instant as sentences have it."""
    return "-" if instant is None else f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def name_of(worker: WorkerPicture) -> str:
    """A worker as sentences have it."""
    return f"worker {worker.id} ({worker.host}:{worker.pid})"

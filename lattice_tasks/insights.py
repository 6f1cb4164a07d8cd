"""Every read-only picture of a namespace and its store, as frozen values. The command line and any later web page read here.

A picture shows one moment and changes nothing; looking never locks what works. Instants are aware datetimes by the
store's clock. How many invocations a queue holds in each place is `queues.Depth`; what lies on a shelf, `dead_letters`.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lattice_tasks import clock
from lattice_tasks.dead_letters.parking import REFUSE
from lattice_tasks.errors import InvalidInput, QueueNotFound, TaskNotFound
from lattice_tasks.queues.record import Depth, shelf_tree
from lattice_tasks.store import pictures
from lattice_tasks.store import queues as queue_rows
from lattice_tasks.store.engine import POSTGRES, Session, sqlite_version
from lattice_tasks.tasks.invocation import Flag, State

__all__ = [
    "Check",
    "QueuePicture",
    "StoreHealth",
    "TableSize",
    "TaskDetail",
    "TaskPicture",
    "WorkerPicture",
    "check_integrity",
    "count_states",
    "has_wal_fault",
    "known_actors",
    "list_tasks",
    "list_workers",
    "live_workers",
    "queue_depth",
    "show_task",
    "store_health",
    "store_now",
]

_PLACES = {State.WAITING: "ready", State.SCHEDULED: "scheduled", State.RUNNING: "lease"}
_WATCHED_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "max_connections")


@dataclass(frozen=True, slots=True)
class TaskPicture:
    """One invocation. `attempt` counts charged failures; `due_at` only while scheduled, `worker_id` only while running.

    `replay_of` and `replaced_by`: the other half of an edit of its dead letter, the parent's id or the changed copy's.
    """

    id: str
    queue: str
    actor: str
    state: State
    attempt: int
    priority: int
    key: str | None
    submitted_at: datetime
    due_at: datetime | None
    deadline_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: int | None
    entry_id: int | None
    error: str | None
    is_replay: bool
    is_suspect: bool
    cancel_requested: bool
    replay_of: str | None
    replaced_by: str | None


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """One invocation with what it carries. `args` and `kwargs` are None where the stored body cannot be read."""

    task: TaskPicture
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    options: dict[str, Any]
    result: Any
    traceback: str | None


@dataclass(frozen=True, slots=True)
class QueuePicture:
    """One queue, its depth, when its longest-waiting task was submitted, and how many live workers serve it.

    `is_stalled`: its shelf is full and refuses, so that nothing but replays is handed out.
    """

    id: int
    name: str
    kind: str
    state: str
    depth: Depth
    oldest_waiting_at: datetime | None
    workers: int
    retention_ms: int | None
    dlq_capacity: int | None
    dlq_on_full: str
    created_at: datetime
    updated_at: datetime

    @property
    def is_stalled(self) -> bool:
        return self.dlq_on_full == REFUSE and self.depth.held > 0


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """One registered worker incarnation. `silent_s`: how long ago it last beat; `running`: what it has leased."""

    id: int
    host: str
    pid: int
    threads: int
    queues: tuple[str, ...]
    actors: tuple[str, ...]
    version: str
    state: str
    started_at: datetime
    seen_at: datetime
    silent_s: float
    running: int


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must never be found, and how many of it were."""

    code: str
    means: str
    count: int


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table as the statistics have it; None where the engine keeps none."""

    name: str
    live_rows: int | None
    dead_rows: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The state of the store itself. `oldest_transaction`: (pid, application, state, age in seconds), or None."""

    engine: str
    version: str
    now: datetime
    size_bytes: int
    free_bytes: int
    tables: tuple[TableSize, ...]
    oldest_transaction: tuple[int, str, str, float] | None
    settings: dict[str, str]


def store_now(session: Session) -> datetime:
    """The instant by the store's clock, which alone decides what is due."""
    return clock.from_us(pictures.now_us(session))


def list_tasks(
    session: Session,
    namespace_id: int,
    queue: str | None = None,
    state: str | None = None,
    actor: str | None = None,
    limit: int = 50,
) -> list[TaskPicture]:
    """Invocations, newest first, at most `limit`; empty when nothing fits.

    Raises:
        InvalidInput: no such state, or a limit below 1.
        QueueNotFound: no such queue.
    """
    if limit < 1:
        raise InvalidInput(f"limit={limit} must be at least 1")
    if queue is not None and queue_rows.find_queue(session, namespace_id, queue) is None:
        raise QueueNotFound(f"no queue {queue!r}; see `lattice-tasks queues list`")
    wanted = None if state is None else _state_named(state)
    rows = pictures.list_tasks(
        session,
        namespace_id,
        queue=queue,
        actor=actor,
        place=_PLACES.get(wanted) if wanted else None,
        code=wanted.code if wanted and not wanted.is_open else None,
        limit=limit,
    )
    return [_task(row) for row in rows]


def show_task(session: Session, namespace_id: int, task_id: str) -> TaskDetail:
    """One invocation with its arguments, result and traceback.

    Raises:
        TaskNotFound: no such id in the namespace; it may have been pruned.
    """
    row = pictures.find_task(session, namespace_id, _uuid(task_id))
    if row is None:
        raise TaskNotFound(f"no task {task_id}; finished ones are kept for their queue's retention only")
    body, result, traceback = row[19:]
    message = _decoded(body)
    message = message if isinstance(message, dict) else {}
    return TaskDetail(
        task=_task(row),
        args=message.get("args"),
        kwargs=message.get("kwargs"),
        options=message.get("options") or {},
        result=_decoded(result),
        traceback=traceback,
    )


def queue_depth(
    session: Session, namespace_id: int, name: str | None = None, lease_ms: int = 30_000
) -> list[QueuePicture]:
    """Every queue, or the named one, by name; `lease_ms` tells which workers live.

    Raises:
        QueueNotFound: no such queue.
    """
    if name is None:
        rows = queue_rows.list_queues(session, namespace_id)
    else:
        row = queue_rows.find_queue(session, namespace_id, name)
        if row is None:
            raise QueueNotFound(f"no queue {name!r}; see `lattice-tasks queues list`")
        rows = [row]
    workers = live_workers(list_workers(session, namespace_id), lease_ms)
    serving = Counter(queue for worker in workers for queue in worker.queues)
    return [_queue(session, row, serving[row[1]]) for row in rows]


def list_workers(session: Session, namespace_id: int) -> list[WorkerPicture]:
    """Every registered incarnation by host and pid; a dead one stays until its lease has run out."""
    return [
        WorkerPicture(
            id=row[0],
            host=row[1],
            pid=row[2],
            threads=row[3],
            queues=tuple(_decoded(row[4]) or ()),
            actors=tuple(_decoded(row[5]) or ()),
            version=row[6],
            state=row[7],
            started_at=clock.from_us(row[8]),
            seen_at=clock.from_us(row[9]),
            silent_s=max(0.0, row[10] / 1_000_000),
            running=row[11],
        )
        for row in pictures.list_workers(session, namespace_id)
    ]


def live_workers(workers: Iterable[WorkerPicture], lease_ms: int) -> list[WorkerPicture]:
    """Those that have beaten within the lease and were not asked to drain: they take new work."""
    return [worker for worker in workers if worker.silent_s * 1_000 <= lease_ms and worker.state == "active"]


def known_actors(workers: Iterable[WorkerPicture]) -> frozenset[str]:
    """Every actor that one of the workers publishes."""
    return frozenset(actor for worker in workers for actor in worker.actors)


def count_states(session: Session, namespace_id: int) -> dict[State, int]:
    """How many invocations that are still kept rest in each state; a state that is missing has none."""
    counted: Counter[State] = Counter()
    for place, code, count in pictures.count_places(session, namespace_id):
        counted[State.of(code, place)] += count
    return dict(counted)


def check_integrity(session: Session) -> list[Check]:
    """Every check with its count, all namespaces together; a sound store counts nothing anywhere."""
    found = [Check(code, means, pictures.count_damage(session, stmt)) for code, means, stmt in pictures.INTEGRITY]
    damaged = pictures.damaged_pages(session)
    means = "faults that SQLite finds in the file" + (f", first: {damaged[0]}" if damaged else "")
    return [*found, Check("damaged_file", means, len(damaged))]


def store_health(session: Session) -> StoreHealth:
    """Size, settings, dead rows and the oldest transaction of the store."""
    size_bytes, free_bytes = pictures.sizes(session)
    return StoreHealth(
        engine=session.dialect,
        version=pictures.store_version(session),
        now=store_now(session),
        size_bytes=size_bytes,
        free_bytes=free_bytes,
        tables=tuple(TableSize(*row) for row in pictures.table_sizes(session)),
        oldest_transaction=pictures.oldest_transaction(session),
        settings=pictures.server_settings(session, _WATCHED_SETTINGS),
    )


def has_wal_fault(engine: str, version: tuple[int, ...] = sqlite_version) -> bool:
    """Whether this process's SQLite can corrupt a WAL database that several connections write.

    Source: the change logs of SQLite 3.51.3, 3.50.7 and 3.44.6, which mend it; it came with 3.7.0.
    """
    if engine == POSTGRES:
        return False
    return not (version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))


def _queue(session: Session, row: tuple[Any, ...], workers: int) -> QueuePicture:
    oldest_us = pictures.head_of(session, row[0])
    return QueuePicture(
        id=row[0],
        name=row[1],
        kind=row[2],
        state=row[3],
        depth=Depth(*queue_rows.depths(session, row[0], shelf_tree(row[0]))),
        oldest_waiting_at=_instant(oldest_us),
        workers=workers,
        retention_ms=row[4],
        dlq_capacity=row[5],
        dlq_on_full=row[6],
        created_at=clock.from_us(row[7]),
        updated_at=clock.from_us(row[8]),
    )


def _task(row: tuple[Any, ...]) -> TaskPicture:
    flags = row[6]
    return TaskPicture(
        id=row[0],
        queue=row[1],
        actor=row[2],
        state=State.of(row[3], row[4]),
        attempt=row[5],
        priority=row[7],
        key=row[8],
        submitted_at=clock.from_us(row[9]),
        due_at=_instant(row[10]),
        deadline_at=_instant(row[11]),
        started_at=_instant(row[12]),
        finished_at=_instant(row[13]),
        worker_id=row[14],
        entry_id=row[15],
        error=row[16],
        is_replay=bool(flags & Flag.REPLAY),
        is_suspect=bool(flags & Flag.SUSPECT),
        cancel_requested=bool(flags & Flag.CANCEL),
        replay_of=row[17],
        replaced_by=row[18],
    )


def _instant(instant_us: int | None) -> datetime | None:
    return None if instant_us is None else clock.from_us(instant_us)


def _state_named(name: str) -> State:
    try:
        state = State(name)
    except ValueError:
        state = State.NEW
    if state is State.NEW:
        known = ", ".join(each for each in State if each is not State.NEW)
        raise InvalidInput(f"state={name!r} is not known; one of {known}")
    return state


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise TaskNotFound(
            f"no task {text!r:.80}: a task id is a UUID, as `lattice-tasks tasks list` shows it"
        ) from None


def _decoded(stored: bytes | str | None) -> Any:
    """JSON as stored; None when there is none, or when it cannot be read."""
    if stored is None:
        return None
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return None

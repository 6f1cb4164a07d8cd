"""What `doctor` looks at, one function a subject; each gives findings with a code, how bad it is, and what mends it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lattice_tasks import clock, insights
from lattice_tasks.dead_letters.parking import REFUSE
from lattice_tasks.insights import QueuePicture, StoreHealth, WorkerPicture
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import POSTGRES, Session, sqlite_version
from lattice_tasks.tasks.invocation import State

__all__ = ["ERROR", "INFO", "OK", "WARNING", "Finding", "about_actors", "about_queues", "about_store", "about_workers"]

OK, INFO, WARNING, ERROR = "ok", "info", "warning", "error"
_OLD_TRANSACTION_S = 60.0
_CLOCK_DIFFERENCE_S = 5.0
_MANY_DEAD_ROWS = 100_000
_LOOKED_AT = 1_000
_MANY_LETTERS = 100
#: Postgres settings that put the promise at risk when they are off: (name, severity, what may happen).
_RISKY = (
    ("fsync", ERROR, "a crash of the machine can damage the database"),
    ("full_page_writes", ERROR, "a crash of the machine can damage the database"),
    ("synchronous_commit", WARNING, "a crash of the server can lose what was accepted in the last moments"),
    ("autovacuum", WARNING, "tables grow and claims become slow"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` is empty when nothing needs to be done."""

    code: str
    severity: str
    finding: str
    fix: str = ""


def about_store(health: StoreHealth, settings: Settings) -> Iterator[Finding]:
    """The library or server, its settings, its clock, its oldest transaction and its dead rows."""
    size = f"{health.size_bytes / 1_048_576:.1f} MiB"
    yield Finding("store", OK, f"{masked(settings.store_url)}: {health.engine} {health.version}, {size}")
    if insights.has_wal_fault(health.engine):
        yield Finding(
            "sqlite_wal_fault",
            WARNING,
            f"SQLite {'.'.join(map(str, sqlite_version))} can damage a file that several processes write at once",
            "pip install 'pysqlite3>=0.6.1' (SQLite 3.51.3, 3.50.7 or 3.44.6 and later are safe), or use Postgres",
        )
    for name, severity, risk in _RISKY if health.engine == POSTGRES else ():
        if health.settings.get(name) == "off":
            yield Finding(
                f"{name}_off", severity, f"{name} = off: {risk}", f"alter system set {name} = on, then reload"
            )
    difference_s = (clock.from_us(clock.wall_us()) - health.now).total_seconds()
    if abs(difference_s) > _CLOCK_DIFFERENCE_S:
        ahead = "ahead of" if difference_s > 0 else "behind"
        yield Finding(
            "clock_difference",
            WARNING,
            f"this host's clock is {abs(difference_s):.0f} s {ahead} the store's, which alone decides what is due",
            "set both by NTP; instants given as --delay or --deadline are meant by the store's clock",
        )
    oldest = health.oldest_transaction
    if oldest is not None and oldest[3] > _OLD_TRANSACTION_S:
        pid, application, state, age_s = oldest
        yield Finding(
            "old_transaction",
            WARNING,
            f"a transaction of pid {pid} ({application or 'no name'}, {state}) is {age_s:.0f} s old: it keeps dead rows",
            f"end what it does, or: select pg_terminate_backend({pid})",
        )
    for table in health.tables:
        dead, live = table.dead_rows or 0, table.live_rows or 0
        if dead > max(_MANY_DEAD_ROWS, live):
            yield Finding(
                "dead_rows", WARNING, f"{table.name} has {dead} dead rows, {live} live", f"vacuum {table.name}"
            )


def about_queues(
    queues: Sequence[QueuePicture], now_us: int, shelf_capacity: int, recent: Mapping[str, int]
) -> Iterator[Finding]:
    """Queues that nobody serves, that are paused, or whose shelf holds something.

    Args:
        recent: letters of each queue that were parked within the last hour.
    """
    yield Finding(
        "queues",
        OK,
        f"{_count(len(queues), 'queue')}, {_count(sum(each.depth.waiting for each in queues), 'task')} waiting",
    )
    for queue in queues:
        depth = queue.depth
        queued = depth.waiting + depth.scheduled
        if queued and queue.state == "paused":
            yield Finding(
                "queue_paused",
                INFO,
                f"{queue.name} is paused, {queued} wait",
                f"lattice-tasks queues resume {queue.name}",
            )
        elif queued and not queue.workers:
            yield Finding(
                "queue_without_worker",
                WARNING,
                f"{queue.name} has {_count(queued, 'task')} to run and no worker{_age(queue, now_us)}",
                "start one: lattice-tasks worker APP",
            )
        yield from _about_shelf(queue, queue.dlq_capacity or shelf_capacity, recent.get(queue.name, 0))


def _about_shelf(queue: QueuePicture, capacity: int, recent: int) -> Iterator[Finding]:
    depth, look = queue.depth, f"lattice-tasks dlq groups --queue {queue.name}"
    mend = f"{look}, then replay or discard"
    full = f"{queue.name} has {depth.parked} dead letters of at most {capacity}"
    refuses = queue.dlq_on_full == REFUSE
    if depth.held:
        stalls = "it is stalled: nothing but replays is handed out" if refuses else "all of them are being replayed"
        yield Finding(
            "queue_stalled" if refuses else "tasks_held",
            WARNING,
            f"{full} and {_count(depth.held, 'held task')} that found no place; {stalls}",
            mend,
        )
    elif depth.parked >= 0.8 * capacity:
        end = "then it stalls" if refuses else "then the oldest is lost"
        yield Finding("shelf_nearly_full", WARNING, f"{full}; {end}", mend)
    elif depth.parked:
        severity = WARNING if recent or depth.parked >= _MANY_LETTERS else INFO
        told = f"{queue.name} has {_count(depth.parked, 'dead letter')}"
        yield Finding(
            "dead_letters", severity, told + (f", {recent} parked within the last hour" if recent else ""), look
        )


def about_workers(workers: Sequence[WorkerPicture], lease_ms: int, version: str) -> Iterator[Finding]:
    """Workers that fell silent, and versions that differ."""
    yield Finding(
        "workers",
        OK if workers else INFO,
        f"{_count(len(workers), 'worker')}, {_count(sum(each.threads for each in workers), 'thread')}",
    )
    for worker in workers:
        if worker.silent_s * 1_000 > lease_ms:
            yield Finding(
                "worker_silent",
                WARNING,
                f"worker {worker.id} ({worker.host}:{worker.pid}) last beat {worker.silent_s:.0f} s ago",
                "start a worker: any living one frees what this one holds within a lease",
            )
    others = sorted({worker.version for worker in workers} - {version})
    if others:
        yield Finding(
            "version_mix", INFO, f"workers run {', '.join(others)}, this is {version}", "finish rolling out one version"
        )


def about_actors(session: Session, namespace_id: int, workers: Sequence[WorkerPicture]) -> Iterator[Finding]:
    """Actors that tasks wait for and no worker knows, among the newest of those that wait."""
    if not workers:
        return
    known = insights.known_actors(workers)
    waiting = insights.list_tasks(session, namespace_id, state=State.WAITING, limit=_LOOKED_AT)
    waiting += insights.list_tasks(session, namespace_id, state=State.SCHEDULED, limit=_LOOKED_AT)
    unknown = sorted({(task.queue, task.actor) for task in waiting if task.actor not in known})
    for queue, actor in unknown:
        yield Finding(
            "actor_unknown",
            WARNING,
            f"tasks in {queue} wait for the actor {actor}, which no worker knows; soon they are parked",
            "start a worker of the app that declares it, or correct the name",
        )


def _age(queue: QueuePicture, now_us: int) -> str:
    if queue.oldest_waiting_at is None:
        return ""
    return f"; the oldest waits for {(clock.from_us(now_us) - queue.oldest_waiting_at).total_seconds():.0f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

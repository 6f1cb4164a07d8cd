"""What the store holds, read and never changed: tasks by place, workers, integrity, and the health of the store itself.

Each picture is one statement, so it shows one moment; optional filters are parameters that may be null. Nothing here is
hot: a person or a probe asks.
"""

from collections.abc import Sequence
from typing import Any

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = [
    "INTEGRITY",
    "count_damage",
    "count_places",
    "damaged_pages",
    "find_task",
    "head_of",
    "list_tasks",
    "list_workers",
    "now_us",
    "oldest_transaction",
    "server_settings",
    "sizes",
    "store_version",
    "table_sizes",
]

_NOW = Statement("select {now}")

# The hot tables carry the current attempt and flags; the invocation's own are those of its last settle.
_TASK = """select cast(i.id as text), q.name, i.actor, i.state,
        case when l.seq is not null then 'lease' when s.seq is not null then 'scheduled'
             when r.seq is not null then 'ready' end,
        coalesce(l.attempt, s.attempt, r.attempt, i.attempt), coalesce(l.flags, s.flags, r.flags, 0),
        i.priority, i.key, i.submitted_at, s.due_at, i.deadline_at, l.claimed_at, i.finished_at, l.worker_id,
        i.entry_id, i.error, cast(i.replay_of as text), cast(i.replaced_by as text)"""
_FROM = """ from lattice_invocation i join lattice_queue q on q.id = i.queue_id
    {0} join lattice_ready r on r.queue_id = i.queue_id and r.seq = i.seq
    {1} join lattice_scheduled s on s.seq = i.seq
    {2} join lattice_lease l on l.seq = i.seq"""
_FILTER = """ where q.namespace_id = %s and (cast(%s as text) is null or q.name = %s)
    and (cast(%s as text) is null or i.actor = %s)"""


def _listing(joins: Sequence[str], order: str, state: str = "") -> Statement:
    return Statement(_TASK + _FROM.format(*joins) + _FILTER + state + f" order by {order} desc limit %s")


# A place is small and the invocations are many: an inner join to the place, ordered by its own key, starts from there.
_ANY = _listing(("left", "left", "left"), "i.seq")
_IN_PLACE = {
    "ready": _listing(("inner", "left", "left"), "r.seq"),
    "scheduled": _listing(("left", "inner", "left"), "s.seq"),
    "lease": _listing(("left", "left", "inner"), "l.seq"),
}
# No index on `state` by design (a settle would have to move it): this walks back from the newest.
_FINISHED = _listing(("left", "left", "left"), "i.seq", " and i.state = %s")
_ONE = _TASK + ", i.body, i.result, i.traceback" + _FROM.format("left", "left", "left")
_FIND = Statement(
    postgres=_ONE + " where q.namespace_id = %s and i.id = %s::uuid",
    sqlite=_ONE + " where q.namespace_id = %s and i.id = %s",
)
_HEAD = Statement(
    """select i.submitted_at from lattice_ready r join lattice_invocation i on i.seq = r.seq
       where r.queue_id = %s order by r.seq limit 1"""
)
_WORKERS = Statement(
    """select w.id, w.host, w.pid, w.threads, w.queues, w.actors, w.version, w.state, w.started_at, w.seen_at,
           {now} - w.seen_at, (select count(*) from lattice_lease l where l.worker_id = w.id)
       from lattice_worker w where w.namespace_id = %s order by w.host, w.pid, w.id"""
)
_PLACES = Statement(
    """select case when l.seq is not null then 'lease' when s.seq is not null then 'scheduled' else 'ready' end,
           i.state, count(*)
       from lattice_invocation i join lattice_queue q on q.id = i.queue_id
       left join lattice_scheduled s on i.state = 0 and s.seq = i.seq
       left join lattice_lease l on i.state = 0 and l.seq = i.seq
       where q.namespace_id = %s group by 1, 2"""
)

# Differences of sets: hashed or sorted once, so fast whatever the statistics say. Anti-joins took 28 s on 400,000 rows
# that had not been analysed.
_OPEN = "select seq from lattice_invocation where state = 0"
_IN_PLACES = (
    "select seq from lattice_ready union all select seq from lattice_scheduled union all select seq from lattice_lease"
)
_ENTRY_KEY = ("'e/' || lpad(i.entry_id::text, 19, '0')", "printf('e/%019d', i.entry_id)")
_SHELF = """select count(*) from lattice_invocation i where i.state = 2 and not exists (
    select 1 from lattice_tree t join lattice_tree_row e on e.tree_id = t.id
    where t.name = '_lattice_dlq_' || i.queue_id and e.key = {0})"""
#: What must never be found, all namespaces together: (code, what it means, statement that counts it).
INTEGRITY: tuple[tuple[str, str, Statement], ...] = (
    (
        "open_without_place",
        "open invocations that are neither waiting, scheduled nor running: they would never run",
        Statement(f"select count(*) from ({_OPEN} except select seq from ({_IN_PLACES}) p) lost"),
    ),
    (
        "place_without_open_invocation",
        "rows in ready, scheduled or lease whose invocation is missing or finished",
        Statement(f"select count(*) from (select seq from ({_IN_PLACES}) p except {_OPEN}) stray"),
    ),
    (
        "two_places",
        "invocations that are in more than one place at once",
        Statement(f"select count(*) from (select seq from ({_IN_PLACES}) p group by seq having count(*) > 1) twice"),
    ),
    (
        "lease_without_worker",
        "leases of workers that are not registered: nobody would free them",
        Statement("select count(*) from lattice_lease where worker_id not in (select id from lattice_worker)"),
    ),
    (
        "parked_without_dead_letter",
        "parked invocations whose dead letter is not on its shelf: they can be neither replayed nor discarded",
        Statement(postgres=_SHELF.format(_ENTRY_KEY[0]), sqlite=_SHELF.format(_ENTRY_KEY[1])),
    ),
    (
        "shelf_count_differs",
        "queues and shelves whose head row counts other than their entries",
        Statement(
            """select count(*) from lattice_fifo_head h where h.count <> (select count(*) from lattice_tree_row e
                   where e.tree_id = h.tree_id and e.key >= 'e/' and e.key < 'e0')"""
        ),
    ),
)

_OLDEST = Statement(
    """select pid, coalesce(application_name, ''), coalesce(state, ''),
           extract(epoch from clock_timestamp() - xact_start)::float8
       from pg_stat_activity where datname = current_database() and xact_start is not null
           and pid <> pg_backend_pid() and backend_type = 'client backend' order by xact_start limit 1"""
)
_SETTINGS = Statement("select name, setting from pg_settings where name = any(%s)")
_TABLES = Statement(
    """select relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid) from pg_stat_user_tables
       where schemaname = current_schema() and starts_with(relname, 'lattice_') order by relname""",
    sqlite="""select name, null, null, null from sqlite_schema
       where type = 'table' and substr(name, 1, 8) = 'lattice_' order by name""",
)
_VERSION = Statement("select current_setting('server_version')", "select sqlite_version()")
_SIZE = Statement(
    "select pg_database_size(current_database()), 0::bigint",
    "select p.page_count * s.page_size, f.freelist_count * s.page_size "
    "from pragma_page_count p, pragma_page_size s, pragma_freelist_count f",
)
_QUICK_CHECK = Statement("select 1", "select quick_check from pragma_quick_check where quick_check <> 'ok'")
_PRAGMAS = Statement(
    "select 1",
    """select 'journal_mode', journal_mode from pragma_journal_mode
       union all select 'synchronous', synchronous from pragma_synchronous""",
)


def now_us(session: Session) -> int:
    """The store's clock."""
    return session.fetch(_NOW)[0][0]


def list_tasks(
    session: Session,
    namespace_id: int,
    *,
    queue: str | None,
    actor: str | None,
    place: str | None,
    code: int | None,
    limit: int,
) -> list[tuple[Any, ...]]:
    """Newest first. `place` narrows to open ones in ready, scheduled or lease, `code` to a finished state."""
    filters: list[Any] = [namespace_id, queue, queue, actor, actor]
    if place is not None:
        return session.fetch(_IN_PLACE[place], (*filters, limit))
    if code is not None:
        return session.fetch(_FINISHED, (*filters, code, limit))
    return session.fetch(_ANY, (*filters, limit))


def find_task(session: Session, namespace_id: int, task_id: str) -> tuple[Any, ...] | None:
    """The columns of `list_tasks` and body, result, traceback; `task_id` must be a UUID in its usual form."""
    rows = session.fetch(_FIND, (namespace_id, task_id))
    return rows[0] if rows else None


def head_of(session: Session, queue_id: int) -> int | None:
    """When the longest-waiting invocation was submitted; None when nothing waits."""
    rows = session.fetch(_HEAD, (queue_id,))
    return rows[0][0] if rows else None


def list_workers(session: Session, namespace_id: int) -> list[tuple[Any, ...]]:
    """Every registered incarnation by host and pid; the last two: microseconds since its last beat, and its leases."""
    return session.fetch(_WORKERS, (namespace_id,))


def count_places(session: Session, namespace_id: int) -> list[tuple[str, int, int]]:
    """(place, state code, count) of all invocations that are kept; the place says nothing for finished ones."""
    return session.fetch(_PLACES, (namespace_id,))


def count_damage(session: Session, statement: Statement) -> int:
    """What one statement of `INTEGRITY` counts."""
    return session.fetch(statement)[0][0]


def damaged_pages(session: Session) -> list[str]:
    """What SQLite's own check finds wrong with the file; empty on Postgres, which has checksums for that."""
    if session.dialect == POSTGRES:
        return []
    return [text for (text,) in session.fetch(_QUICK_CHECK)]


def oldest_transaction(session: Session) -> tuple[int, str, str, float] | None:
    """(pid, application, state, age in seconds) of the oldest other transaction; None on SQLite, or when none is open."""
    if session.dialect != POSTGRES:
        return None
    rows = session.fetch(_OLDEST)
    return rows[0] if rows else None


def table_sizes(session: Session) -> list[tuple[str, int | None, int | None, int | None]]:
    """(table, live rows, dead rows, bytes) as the statistics have it; SQLite knows only the names."""
    return session.fetch(_TABLES)


def store_version(session: Session) -> str:
    """The version of the server, or of the SQLite library."""
    return session.fetch(_VERSION)[0][0]


def sizes(session: Session) -> tuple[int, int]:
    """Bytes of the whole store, and how many of them are free for reuse (SQLite)."""
    return session.fetch(_SIZE)[0]


def server_settings(session: Session, names: Sequence[str]) -> dict[str, str]:
    """Settings by name as the store says them; SQLite answers `journal_mode` and `synchronous` whatever is asked."""
    if session.dialect == POSTGRES:
        return dict(session.fetch(_SETTINGS, (list(names),)))
    return {name: str(value) for name, value in session.fetch(_PRAGMAS)}

"""The rows of namespaces and queues, and how many invocations each place of a queue holds."""

from lattice_tasks.store.engine import Session, Statement

__all__ = [
    "add_queue",
    "depths",
    "find_namespace",
    "find_queue",
    "list_queues",
    "open_namespace",
    "queue_of",
    "set_queue_state",
]

_ADD_NAMESPACE = Statement(
    "insert into lattice_namespace (name, wake_id, created_at) values (%s, %s, {now}) on conflict do nothing"
)
_FIND_NAMESPACE = Statement("select id, wake_id from lattice_namespace where name = %s")

_COLUMNS = "id, name, kind, state, retention_ms, dlq_capacity, dlq_on_full, created_at, updated_at"
_ADD = Statement(
    f"""insert into lattice_queue (namespace_id, name, kind, state, retention_ms, dlq_capacity, dlq_on_full,
            created_at, updated_at)
        values (%s, %s, %s, 'active', %s, %s, %s, {{now}}, {{now}})
        on conflict do nothing returning {_COLUMNS}"""
)
_FIND = Statement(f"select {_COLUMNS} from lattice_queue where namespace_id = %s and name = %s")
_OF_ID = Statement("select name, dlq_capacity, dlq_on_full from lattice_queue where id = %s")
_LIST = Statement(f"select {_COLUMNS} from lattice_queue where namespace_id = %s order by name")
_SET_STATE = Statement(
    f"""update lattice_queue set state = %s, updated_at = {{now}}
        where namespace_id = %s and name = %s and state = %s returning {_COLUMNS}"""
)
_DEPTHS = Statement(
    """select (select count(*) from lattice_ready where queue_id = q.id),
              (select count(*) from lattice_scheduled where queue_id = q.id),
              (select count(*) from lattice_lease where queue_id = q.id
                   and worker_id in (select id from lattice_worker)),
              coalesce((select h.count from lattice_tree t join lattice_fifo_head h on h.tree_id = t.id
                        where t.name = %s), 0),
              (select count(*) from lattice_held where queue_id = q.id)
       from lattice_queue q where q.id = %s"""
)


def open_namespace(session: Session, name: str, wake_id: str) -> tuple[int, str]:
    """Id and wake id of the namespace, which is made if it is missing; `wake_id` is used only then."""
    found = find_namespace(session, name)
    if found is None:
        session.execute(_ADD_NAMESPACE, (name, wake_id))
        (found,) = session.fetch(_FIND_NAMESPACE, (name,))
    return found[0], found[1]


def find_namespace(session: Session, name: str) -> tuple[int, str] | None:
    """Id and wake id of the namespace, if it is there."""
    rows = session.fetch(_FIND_NAMESPACE, (name,))
    return (rows[0][0], rows[0][1]) if rows else None


def add_queue(
    session: Session,
    namespace_id: int,
    name: str,
    kind: str,
    retention_ms: int | None,
    dlq_capacity: int | None,
    dlq_on_full: str,
) -> tuple | None:
    """The new queue's row, or None when the name is taken."""
    rows = session.fetch(_ADD, (namespace_id, name, kind, retention_ms, dlq_capacity, dlq_on_full))
    return rows[0] if rows else None


def find_queue(session: Session, namespace_id: int, name: str) -> tuple | None:
    """The queue's row, or None."""
    rows = session.fetch(_FIND, (namespace_id, name))
    return rows[0] if rows else None


def queue_of(session: Session, queue_id: int) -> tuple[str, int | None, str] | None:
    """Name, shelf capacity and what a full shelf does, of any namespace's queue; None: no such id."""
    rows = session.fetch(_OF_ID, (queue_id,))
    return (rows[0][0], rows[0][1], rows[0][2]) if rows else None


def list_queues(session: Session, namespace_id: int) -> list[tuple]:
    """The rows of the namespace's queues, by name."""
    return session.fetch(_LIST, (namespace_id,))


def set_queue_state(session: Session, namespace_id: int, name: str, before: str, after: str) -> tuple | None:
    """The changed row, or None when the queue is not in the state `before`."""
    rows = session.fetch(_SET_STATE, (after, namespace_id, name, before))
    return rows[0] if rows else None


def depths(session: Session, queue_id: int, shelf_tree: str) -> tuple[int, int, int, int, int]:
    """How many are waiting, scheduled, running, parked and held."""
    rows = session.fetch(_DEPTHS, (shelf_tree, queue_id))
    return rows[0] if rows else (0, 0, 0, 0, 0)

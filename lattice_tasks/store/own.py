"""Whether a caller's connection leads to our store: what is submitted elsewhere, no worker of ours would ever find."""

from collections.abc import Callable
from os.path import realpath

from lattice_tasks.errors import InvalidOperation, StoreError
from lattice_tasks.store.engine import SQLITE, Engine, Session, Statement
from lattice_tasks.store.queues import find_namespace

__all__ = ["require_own"]

_FILES = Statement("select 0, 'main', current_database()", "pragma database_list")


def require_own(engine: Engine, joined: Session, name: str, opened: Callable[[], tuple[int, str]]) -> None:
    """Refuse a joined connection to any other database than the engine's.

    A file is known by its path. A server has many names, so there the namespace's wake id tells, which is random.

    Args:
        opened: the namespace's id and wake id in our store; asked for once a file is known to be ours.

    Raises:
        InvalidOperation: it is another file, another database, or our tables are not on its search path.
    """
    if engine.dialect == SQLITE:
        theirs = joined.fetch(_FILES)[0][2]
        is_own = bool(theirs) and realpath(theirs) == realpath(engine.database.database)
    else:
        ours = opened()
        try:
            is_own = find_namespace(joined, name) == ours
        except StoreError as error:
            raise _elsewhere() from error
    if not is_own:
        raise _elsewhere()


def _elsewhere() -> InvalidOperation:
    return InvalidOperation(
        "this connection does not lead to the store: a task submitted on it would be in another database, where no "
        "worker looks; connect to what store_url names"
    )

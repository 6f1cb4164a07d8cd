"""Bringing a store to this code's schema, safely when several processes start at once.

The runner is `playhouse.migrations`; here is only who may run it when: under one lock, in one transaction.
"""

from pathlib import Path

import peewee
import psycopg
from playhouse.migrations import Runner

from lattice_tasks.errors import SchemaMismatch
from lattice_tasks.store.engine import POSTGRES, Engine
from lattice_tasks.store.session import translated

__all__ = ["MIGRATIONS", "migrate", "require_current", "status"]

MIGRATIONS = Path(__file__).parent / "migrations"
_HISTORY = "lattice_migration"
_LOCK_KEY = 0x4C61747469636531  # any constant: one per product, not per store


def status(engine: Engine) -> tuple[list[str], list[str], list[str]]:
    """Names of the applied migrations, the pending ones, and those that only newer code knows."""
    runner = Runner(engine.database, str(MIGRATIONS), _HISTORY)
    with engine.session():
        try:
            rows = runner.status()
        except (peewee.PeeweeException, psycopg.Error) as error:
            raise translated(error) from error
    applied = [row.name for row in rows if row.applied and row.path]
    pending = [row.name for row in rows if not row.applied]
    return applied, pending, [row.name for row in rows if not row.path]


def migrate(engine: Engine) -> list[str]:
    """Apply what is pending; returns the names applied, empty when the schema was current.

    Raises:
        SchemaMismatch: the store was migrated by newer code.
        StoreUnavailable: no connection, or another process holds the lock for too long.
    """
    _refuse_newer(engine)
    runner = Runner(engine.database, str(MIGRATIONS), _HISTORY)
    with engine.session() as session:
        try:
            if engine.dialect != POSTGRES:
                session.raw.execute("pragma foreign_keys = 0")
            with engine.database.atomic() if engine.dialect == POSTGRES else engine.database.atomic("immediate"):
                if engine.dialect == POSTGRES:
                    engine.database.execute_sql("select pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
                return runner.up()
        except (peewee.PeeweeException, psycopg.Error) as error:
            raise translated(error) from error
        finally:
            if engine.dialect != POSTGRES:
                session.raw.execute("pragma foreign_keys = 1")


def require_current(engine: Engine) -> None:
    """Migrate an empty store; refuse an older or newer one.

    Raises:
        SchemaMismatch: says which command to run.
    """
    applied, pending, _ = status(engine)
    if not applied:
        migrate(engine)
        return
    _refuse_newer(engine)
    if pending:
        raise SchemaMismatch(
            f"the store's schema is older than this code ({len(pending)} pending, first {pending[0]}); "
            "run `lattice-tasks db migrate`"
        )


def _refuse_newer(engine: Engine) -> None:
    newer = status(engine)[2]
    if newer:
        raise SchemaMismatch(
            f"the store's schema is newer than this code (it has {newer[0]}); upgrade lattice-tasks on this host"
        )

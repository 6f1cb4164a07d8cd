"""One store, two engines: where sessions come from - the pool, a connection of its own, or the caller's transaction.

Hot statements are fixed SQL (`Statement`); peewee builds the schema and the reports, and keeps the pool.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import unquote
from weakref import WeakSet

import peewee
import psycopg
from playhouse.pool import PooledPostgresqlDatabase, PooledSqliteDatabase
from psycopg.conninfo import conninfo_to_dict

from lattice_tasks import clock
from lattice_tasks.errors import InvalidOperation, SettingsError, StoreInvalid, StoreUnavailable
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings
from lattice_tasks.store.session import (
    DRIVER_ERRORS,
    POOL_ERRORS,
    POSTGRES,
    SQLITE,
    Session,
    Statement,
    sqlite,
    translated,
)

__all__ = ["POSTGRES", "SQLITE", "Engine", "Session", "Statement", "sqlite_version"]

sqlite_version: tuple[int, ...] = sqlite.sqlite_version_info

_SWITCH_S = 5.0
_FORK_S = 2.0
_PROBE_AFTER_S = 1.0
_ISOLATION = Statement("select current_setting('transaction_isolation')")


class _PostgresPool(PooledPostgresqlDatabase):
    """Probes a connection only when it has been idle for a second: a probe costs a submit a tenth."""

    def _is_closed(self, conn: Any) -> bool:
        if conn.closed:
            return True
        rested_s = clock.monotonic() - getattr(conn, "lattice_used_at", 0.0)
        return rested_s > _PROBE_AFTER_S and super()._is_closed(conn)

    def _can_reuse(self, conn: Any) -> bool:
        conn.lattice_used_at = clock.monotonic()
        return super()._can_reuse(conn)


class _SqlitePool(PooledSqliteDatabase):
    """Waits its turn to switch a new file to WAL: that takes the whole file, and SQLite does not wait for it by itself.

    Has nothing open while the process forks. SQLite keeps the books of its file locks once per process; a child that
    inherits them takes its parent's locks for its own, and what it commits was seen to be lost.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._may_open = threading.Event()
        self._may_open.set()
        super().__init__(*args, **options)

    def connect(self, reuse_if_open: bool = False) -> bool:
        if not self._may_open.is_set() and self.is_closed():
            self._may_open.wait(_FORK_S)
        return super().connect(reuse_if_open)

    def close_for_fork(self) -> None:
        """Wait until the other threads have given back what they use, and close everything; nothing opens meanwhile."""
        self._may_open.clear()
        give_up_at = clock.monotonic() + _FORK_S
        own = 0 if self.is_closed() else 1
        self._pool_lock.acquire()
        while len(self._in_use) > own and clock.monotonic() < give_up_at:
            self._pool_lock.release()
            sleep(0.001)
            self._pool_lock.acquire()
        self.close_idle()

    def go_on_after_fork(self) -> None:
        """In the parent: connections may be opened again."""
        self._pool_lock.release()
        self._may_open.set()

    def _connect(self) -> Any:
        give_up_at = clock.monotonic() + _SWITCH_S
        while True:
            try:
                return super()._connect()
            except sqlite.OperationalError as error:
                if "locked" not in str(error) or clock.monotonic() > give_up_at:
                    raise
            sleep(random.uniform(0.005, 0.05))


class Engine:
    """The store of one `Lattice`: makes sessions; opens nothing until the first one is asked for."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.store_url.replace("postgres://", "postgresql://", 1)
        self.dialect = SQLITE if self.url.startswith("sqlite:") else POSTGRES
        self._settings = settings
        self._joined: ContextVar[Session | None] = ContextVar("lattice_joined", default=None)
        self._is_inherited = False
        self._apart: WeakSet[Session] = WeakSet()
        self._open_pool()
        if self.dialect == SQLITE:
            os.register_at_fork(
                before=lambda: self.database.close_for_fork(),
                after_in_parent=lambda: self.database.go_on_after_fork(),
            )
        os.register_at_fork(after_in_child=self._forget_parent)

    def __repr__(self) -> str:
        return f"Engine({masked(self.url)})"

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session of this thread: the caller's own connection inside `joining`, else one of the pool.

        Raises:
            StoreUnavailable: no connection within `store_timeout_ms`.
            StoreInvalid: the file is not a database, or may not be written.
        """
        joined = self._joined.get()
        if joined is not None:
            yield joined
            return
        opened = self._connect()
        try:
            yield self._session_of(self.database.connection())
        finally:
            if opened:
                self.database.close()

    @property
    def is_joined(self) -> bool:
        """Whether sessions of this context are a caller's own connection."""
        return self._joined.get() is not None

    @property
    def is_provisional(self) -> bool:
        """Whether what `apart` writes now may still be rolled back by the caller."""
        return self.dialect == SQLITE and self.is_joined

    @contextmanager
    def joining(self, connection: Any) -> Iterator[Session]:
        """Within the block, this thread's sessions are the caller's own psycopg connection or peewee database, and
        follow the fate of the transaction that is open there.

        Raises:
            InvalidOperation: another kind of connection, another dialect, an isolation above READ COMMITTED, or a
                connection in autocommit mode without a transaction.
        """
        session = Session(_raw_of(connection, self.dialect), self.dialect)
        if _is_autocommit(session) and not session.in_transaction:
            raise InvalidOperation("no transaction is open on this connection; begin one, or use lattice.transaction")
        if self.dialect == POSTGRES:
            level = session.fetch(_ISOLATION)[0][0]
            if level != "read committed":
                raise InvalidOperation(f"joined transactions must be READ COMMITTED, this one is {level.upper()}")
        else:
            session.raw.create_function("lattice_now", 0, self._now_us)
        token = self._joined.set(session)
        try:
            yield session
        finally:
            self._joined.reset(token)

    @contextmanager
    def beginning(self, connection: Any) -> Iterator[Session]:
        """`joining`, in a transaction that is begun here by the connection's own means, so that it knows of it, and
        that commits at the end of the block.

        Raises:
            InvalidOperation: as for `joining`, or a transaction is open there already.
        """
        with _begun(connection, self.require_idle(connection)), self.joining(connection) as joined:
            yield joined

    def require_idle(self, connection: Any) -> Session:
        """A session on the caller's connection, on which no transaction is open.

        Raises:
            InvalidOperation: one is, or it cannot be joined at all.
        """
        session = Session(_raw_of(connection, self.dialect), self.dialect)
        if session.in_transaction:
            raise InvalidOperation(
                "a transaction is open on this connection already; use lattice.joining to follow its fate"
            )
        return session

    @contextmanager
    def apart(self) -> Iterator[Session]:
        """A pooled session outside the caller's joined transaction: what it writes stands whatever the caller does.

        On SQLite it is the joined one: there the caller's transaction holds the only write lock.
        """
        token = self._joined.set(self._joined.get() if self.dialect == SQLITE else None)
        try:
            with self.session() as session:
                yield session
        finally:
            self._joined.reset(token)

    @contextmanager
    def together(self) -> Iterator[Session]:
        """Within the block, this context's sessions are one connection of its own, in one transaction that commits at
        the end of the block; inside a caller's transaction they follow that one's fate."""
        outer = self._joined.get()
        session = self.open_session() if outer is None else outer
        token = self._joined.set(session)
        try:
            with session.transaction():
                yield session
        finally:
            self._joined.reset(token)
            if outer is None:
                session.close()

    def open_session(self, lock_wait_ms: int = 0) -> Session:
        """A session on a connection of its own, outside the pool; the caller closes it.

        On Postgres it waits for a lock for `lock_wait_ms`, when given, instead of `store_timeout_ms`.
        """
        try:
            if self.dialect == POSTGRES:
                raw = psycopg.connect(**self._postgres_params(lock_wait_ms), autocommit=True)
                return Session(raw, POSTGRES)
            self._require_own_books()
            database = self._sqlite_database()
            database.connect()
            session = Session(database.connection(), SQLITE)
            self._apart.add(session)
            return session
        except (*DRIVER_ERRORS, *POOL_ERRORS, peewee.DatabaseError) as error:
            raise translated(error) from error

    def close_idle(self) -> None:
        """Close the connections of the pool that nobody uses now."""
        self.database.close_idle()

    def close(self) -> None:
        """Close every connection of the pool; sessions opened by `open_session` are their owner's."""
        self.database.close_all()

    def _session_of(self, raw: Any) -> Session:
        """A psycopg connection keeps its session, cursor included: making one costs a submit a tenth of its CPU."""
        if self.dialect == SQLITE:
            return Session(raw, SQLITE)
        session: Session | None = getattr(raw, "lattice_session", None)
        if session is None:
            session = raw.lattice_session = Session(raw, POSTGRES)
        return session

    def _require_own_books(self) -> None:
        if self._is_inherited:
            raise InvalidOperation(
                "this process was forked from one that was at work on the SQLite file, and SQLite cannot share that; "
                'start it with multiprocessing.get_context("spawn"), or use Postgres'
            )

    def _connect(self) -> bool:
        self._require_own_books()
        try:
            return self.database.connect(reuse_if_open=True)
        except (*DRIVER_ERRORS, *POOL_ERRORS, peewee.DatabaseError, ValueError) as error:
            raise (
                translated(error)
                if not isinstance(error, ValueError)
                else StoreUnavailable(
                    f"no store connection became free within {self._settings.store_timeout_ms} ms "
                    f"(pool_size={self._settings.pool_size})"
                )
            ) from error

    def _open_pool(self) -> None:
        if self.dialect == SQLITE:
            self.database: Any = self._sqlite_database()
            return
        self.database = _PostgresPool(
            self.url,
            prefer_psycopg3=True,
            max_connections=self._settings.pool_size,
            timeout=self._settings.store_timeout_ms / 1000,
            **self._postgres_params(),
        )

    def _postgres_params(self, lock_wait_ms: int = 0) -> dict[str, Any]:
        settings = self._settings
        params: dict[str, Any] = {
            "conninfo": self.url,
            "connect_timeout": max(2, settings.store_timeout_ms // 1000),
            "application_name": "lattice_tasks",
        }
        if settings.pgbouncer:
            params["prepare_threshold"] = None
            return params
        options = [
            f"-c lock_timeout={lock_wait_ms or settings.store_timeout_ms}",
            # A process frozen within a transaction must not keep its locks, and its leases, for ever.
            f"-c idle_in_transaction_session_timeout={settings.store_timeout_ms}",
            # Our statements mean the same plan for every parameter; planning anew would double what a claim costs.
            "-c plan_cache_mode=force_generic_plan",
        ]
        if settings.clock_offset_ms:
            options.append(f"-c lattice.clock_offset_us={settings.clock_offset_ms * 1000}")
        try:
            theirs = conninfo_to_dict(self.url).get("options") or ""
        except psycopg.Error as error:
            raise SettingsError(f"store_url={masked(self.url)!r} cannot be read: {str(error).strip()}") from None
        params["options"] = " ".join([*options, str(theirs)]).strip()
        return params

    def _sqlite_database(self) -> _SqlitePool:
        path = unquote(self.url.removeprefix("sqlite:///").split("?")[0])
        if not path or path == ":memory:":
            raise SettingsError(f"store_url={self.url!r} names no file; use sqlite:///lattice.db")
        if Path(path).is_dir():
            raise StoreInvalid(f"the store cannot be used: {path} is a directory")
        database = _SqlitePool(
            path,
            max_connections=self._settings.pool_size,
            timeout=self._settings.store_timeout_ms / 1000,
            pragmas=(
                ("busy_timeout", self._settings.store_timeout_ms),
                ("journal_mode", "wal"),
                ("synchronous", "full"),
                ("foreign_keys", 1),
                ("cache_size", -16_000),
            ),
            check_same_thread=False,
        )
        database.register_function(self._now_us, "lattice_now", 0)
        return database

    def _now_us(self) -> int:
        return clock.wall_us() + self._settings.clock_offset_ms * 1000

    def _forget_parent(self) -> None:
        """After a fork the child opens its own connections; the parent's stay the parent's."""
        self._kept_from_parent = self.database  # not closed, not collected: closing would end the parent's session
        if self.dialect == SQLITE:
            self._is_inherited = bool(self.database._in_use) or any(_is_open(session) for session in self._apart)
        self._open_pool()


def _raw_of(connection: Any, dialect: str) -> Any:
    """The driver's connection under what a caller gave us."""
    raw = connection
    if isinstance(connection, peewee.Database):
        raw = None if connection.is_closed() else connection.connection()
    is_ours = isinstance(raw, psycopg.Connection if dialect == POSTGRES else sqlite.Connection)
    if not is_ours or getattr(raw, "closed", False):
        raise InvalidOperation(
            f"cannot join {type(connection).__name__}: pass an open psycopg connection or a connected peewee "
            f"database of the {dialect} store"
        )
    return raw


def _is_open(session: Session) -> bool:
    try:
        return isinstance(session.in_transaction, bool)
    except sqlite.ProgrammingError:  # what a closed connection answers
        return False


def _is_autocommit(session: Session) -> bool:
    return bool(session.raw.autocommit if session.dialect == POSTGRES else session.raw.isolation_level is None)


def _begun(connection: Any, session: Session) -> AbstractContextManager[Any]:
    if isinstance(connection, peewee.Database):
        return connection.atomic() if session.dialect == POSTGRES else connection.atomic("immediate")
    return session.raw.transaction() if session.dialect == POSTGRES else session.transaction()

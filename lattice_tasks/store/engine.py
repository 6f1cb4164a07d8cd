"""One store, two dialects: connections, transactions, and the wall where driver errors become ours.

A `Session` is one open connection. Every function of this room takes the session it shall use, so the same function works
on a pooled connection, on a connection of a thread's own, and inside a transaction that the caller opened.
Hot statements are fixed SQL (`Statement`); peewee builds the schema and the reports, and keeps the pool.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import peewee
import psycopg
from playhouse.pool import PooledPostgresqlDatabase, PooledSqliteDatabase

from lattice_tasks import clock
from lattice_tasks.errors import InvalidOperation, SettingsError, StoreError, StoreInvalid, StoreUnavailable
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings

try:  # peewee takes the same one: a fixed SQLite where its wheel installs
    from pysqlite3 import dbapi2 as sqlite
except ImportError:
    sqlite = sqlite3

__all__ = ["POSTGRES", "SQLITE", "Engine", "Session", "Statement", "sqlite_version"]

POSTGRES, SQLITE = "postgres", "sqlite"
sqlite_version: tuple[int, ...] = sqlite.sqlite_version_info

_PROBE_AFTER_S = 1.0
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, sqlite.OperationalError, sqlite.InterfaceError)
_DRIVER = (psycopg.Error, sqlite.Error)
_POOL = (peewee.OperationalError, peewee.InterfaceError)
_UNUSABLE = ("not a database", "readonly", "read-only", "malformed", "unable to open", "is a directory")


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL text per dialect. `{now}` is the store's clock in microseconds; parameters are `%s` in both."""

    postgres: str
    sqlite: str = ""

    def __post_init__(self) -> None:
        both = self.sqlite or self.postgres
        now = "(extract(epoch from statement_timestamp()) * 1000000)::bigint"
        offset = "coalesce(nullif(current_setting('lattice.clock_offset_us', true), '')::bigint, 0)"
        object.__setattr__(self, "postgres", self.postgres.replace("{now}", f"({now} + {offset})"))
        object.__setattr__(self, "sqlite", both.replace("{now}", "lattice_now()").replace("%s", "?"))


class Session:
    """One open connection in autocommit mode. Not for two threads at once."""

    def __init__(self, raw: Any, dialect: str) -> None:
        self.raw = raw
        self.dialect = dialect
        self._cursor = raw.cursor(binary=True) if dialect == POSTGRES else raw.cursor()
        self._depth = 0

    def fetch(self, statement: Statement, params: Sequence[Any] = ()) -> list[tuple]:
        """Run one statement and return its rows, in the statement's order.

        Raises:
            StoreUnavailable: no answer; whether a write happened is unknown. Trying again helps.
            StoreInvalid, StoreError: it was refused.
        """
        try:
            if self.dialect == POSTGRES:
                return self._cursor.execute(statement.postgres, params).fetchall()
            return self._cursor.execute(statement.sqlite, params).fetchall()
        except _DRIVER as error:
            raise translated(error) from error

    def execute(self, statement: Statement, params: Sequence[Any] = ()) -> int:
        """Run one statement and return the number of rows it changed; raises like `fetch`."""
        try:
            if self.dialect == POSTGRES:
                return self._cursor.execute(statement.postgres, params).rowcount
            return self._cursor.execute(statement.sqlite, params).rowcount
        except _DRIVER as error:
            raise translated(error) from error

    def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for every row of parameters; raises like `fetch`."""
        try:
            text = statement.postgres if self.dialect == POSTGRES else statement.sqlite
            self._cursor.executemany(text, rows)
        except _DRIVER as error:
            raise translated(error) from error

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on this connection, ours or the caller's."""
        if self.dialect == POSTGRES:
            return self.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        return self.raw.in_transaction

    @contextmanager
    def transaction(self) -> Iterator["Session"]:
        """All or nothing. Nested, or inside the caller's own transaction, it joins: the outermost decides.

        On SQLite BEGIN IMMEDIATE: a writer that starts as a reader would be refused in the middle.
        """
        if self._depth or self.in_transaction:
            self._depth += 1
            try:
                yield self
            finally:
                self._depth -= 1
            return
        self._plain("begin" if self.dialect == POSTGRES else "begin immediate")
        self._depth = 1
        try:
            yield self
        except BaseException:
            self._rollback()
            raise
        else:
            self._plain("commit")
        finally:
            self._depth = 0

    def close(self) -> None:
        """Close the connection; safe on a broken one."""
        try:
            self.raw.close()
        except _DRIVER:
            return

    def _plain(self, sql: str) -> None:
        try:
            self._cursor.execute(sql)
        except _DRIVER as error:
            if sql == "commit":
                self._rollback()
            raise translated(error) from error

    def _rollback(self) -> None:
        try:
            if self.in_transaction:
                self._cursor.execute("rollback")
        except _DRIVER:
            self.close()


def translated(error: Exception) -> StoreError:
    """The error of this package for a driver's error; its text names no parameters."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if any(mark in text.lower() for mark in _UNUSABLE):
        return StoreInvalid(f"the store cannot be used: {text}")
    if isinstance(error, _LOST + _POOL):
        return StoreUnavailable(f"the store does not answer: {masked(text)}")
    return StoreError(f"the store refused a statement: {masked(text)}")


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


class Engine:
    """The store of one `Lattice`: makes sessions; opens nothing until the first one is asked for."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.store_url.replace("postgres://", "postgresql://", 1)
        self.dialect = SQLITE if self.url.startswith("sqlite:") else POSTGRES
        self._settings = settings
        self._joined: ContextVar[Session | None] = ContextVar("lattice_joined", default=None)
        self._fork_lock = threading.Lock()
        self._open_pool()
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
            yield Session(self.database.connection(), self.dialect)
        finally:
            if opened:
                self.database.close()

    @property
    def is_joined(self) -> bool:
        """Whether sessions of this context are a caller's own connection."""
        return self._joined.get() is not None

    @contextmanager
    def joining(self, connection: Any) -> Iterator[Session]:
        """Within the block, this thread's sessions are the caller's own open psycopg connection or peewee database.

        Raises:
            InvalidOperation: another kind of connection, another dialect, or an isolation above READ COMMITTED.
        """
        session = Session(_raw_of(connection), self.dialect) if _fits(connection, self.dialect) else None
        if session is None:
            raise InvalidOperation(
                f"cannot join {type(connection).__name__}: pass an open psycopg connection or a connected peewee "
                f"database of the {self.dialect} store"
            )
        if self.dialect == POSTGRES:
            level = session.raw.execute("show transaction_isolation").fetchone()
            name = level[0] if not isinstance(level, dict) else level["transaction_isolation"]
            if name != "read committed":
                raise InvalidOperation(f"joined transactions must be READ COMMITTED, this one is {name.upper()}")
        token = self._joined.set(session)
        try:
            yield session
        finally:
            self._joined.reset(token)

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

    def open_session(self) -> Session:
        """A session on a connection of its own, outside the pool; the caller closes it."""
        try:
            if self.dialect == POSTGRES:
                return Session(psycopg.connect(**self._postgres_params(), autocommit=True), POSTGRES)
            database = self._sqlite_database()
            database.connect()
            return Session(database.connection(), SQLITE)
        except (*_DRIVER, *_POOL, peewee.DatabaseError) as error:
            raise translated(error) from error

    def close(self) -> None:
        """Close every connection of the pool; sessions opened by `open_session` are their owner's."""
        self.database.close_all()

    def _connect(self) -> bool:
        try:
            return self.database.connect(reuse_if_open=True)
        except (*_DRIVER, *_POOL, peewee.DatabaseError, ValueError) as error:
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

    def _postgres_params(self) -> dict[str, Any]:
        settings = self._settings
        params: dict[str, Any] = {
            "conninfo": self.url,
            "connect_timeout": max(2, settings.store_timeout_ms // 1000),
            "application_name": "lattice_tasks",
        }
        if settings.pgbouncer:
            params["prepare_threshold"] = None
            return params
        params["options"] = f"-c lock_timeout={settings.store_timeout_ms}"
        if settings.clock_offset_ms:
            params["options"] += f" -c lattice.clock_offset_us={settings.clock_offset_ms * 1000}"
        return params

    def _sqlite_database(self) -> PooledSqliteDatabase:
        path = unquote(self.url.removeprefix("sqlite:///").split("?")[0])
        if not path or path == ":memory:":
            raise SettingsError(f"store_url={self.url!r} names no file; use sqlite:///lattice.db")
        if Path(path).is_dir():
            raise StoreInvalid(f"the store cannot be used: {path} is a directory")
        database = PooledSqliteDatabase(
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
        offset_us = self._settings.clock_offset_ms * 1000
        database.register_function(lambda: clock.wall_us() + offset_us, "lattice_now", 0)
        return database

    def _forget_parent(self) -> None:
        """After a fork the child opens its own connections; the parent's stay the parent's."""
        self._kept_from_parent = self.database  # not closed, not collected: closing would end the parent's session
        self._open_pool()


def _raw_of(connection: Any) -> Any:
    return connection.connection() if isinstance(connection, peewee.Database) else connection


def _fits(connection: Any, dialect: str) -> bool:
    if isinstance(connection, peewee.Database):
        if connection.is_closed():
            return False
        connection = connection.connection()
    return isinstance(connection, psycopg.Connection if dialect == POSTGRES else sqlite.Connection)

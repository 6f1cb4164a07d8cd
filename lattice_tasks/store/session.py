"""A session: one open connection, two dialects, and the wall where driver errors become ours.

Every function of the store takes the session it shall use, so the same function works on a pooled connection, on a
connection of a thread's own, and inside a transaction that the caller opened.
"""

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any

import peewee
import psycopg
from psycopg.rows import tuple_row

from lattice_tasks import clock
from lattice_tasks.errors import StoreError, StoreInvalid, StoreUnavailable
from lattice_tasks.masking import masked

try:  # peewee takes the same one: a fixed SQLite where its wheel installs
    from pysqlite3 import dbapi2 as sqlite
except ImportError:
    sqlite = sqlite3

__all__ = ["DRIVER_ERRORS", "POOL_ERRORS", "POSTGRES", "SQLITE", "Session", "Statement", "sqlite", "translated"]

POSTGRES, SQLITE = "postgres", "sqlite"
DRIVER_ERRORS = (psycopg.Error, sqlite.Error)
POOL_ERRORS = (peewee.OperationalError, peewee.InterfaceError)

_LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    sqlite.OperationalError,
    sqlite.InterfaceError,
)
# A driver that cannot even write a parameter down says so with an error of Python's own.
_REFUSALS = (*DRIVER_ERRORS, UnicodeEncodeError, OverflowError)
_NAPS_S = (0.0005, 0.002)  # between two askings for SQLite's one writer's place
_UNUSABLE = ("not a database", "readonly", "read-only", "malformed", "unable to open", "is a directory")


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL text per dialect. `{now}` is the store's clock in microseconds; parameters are `%s` in both.

    `replans`: Postgres plans it at each execution, by the tables' sizes of that moment. A connection keeps other plans
    until the next ANALYZE, and one that was made for a table of one page reads all of a table that has grown since.
    """

    postgres: str
    sqlite: str = ""
    replans: bool = False

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
        self._cursor = _plain_cursor(raw, dialect)
        self._depth = 0

    def fetch(self, statement: Statement, params: Sequence[Any] = ()) -> list[tuple]:
        """Run one statement and return its rows, in the statement's order.

        Raises:
            StoreUnavailable: no answer; whether a write happened is unknown. Trying again helps.
            StoreInvalid, StoreError: it was refused.
        """
        try:
            if self.dialect == POSTGRES:
                return self._cursor.execute(statement.postgres, params, prepare=_prepares(statement)).fetchall()
            return self._cursor.execute(statement.sqlite, params).fetchall()
        except _REFUSALS as error:
            raise translated(error) from error

    def execute(self, statement: Statement, params: Sequence[Any] = ()) -> int:
        """Run one statement and return the number of rows it changed; raises like `fetch`."""
        try:
            if self.dialect == POSTGRES:
                return self._cursor.execute(statement.postgres, params, prepare=_prepares(statement)).rowcount
            return self._cursor.execute(statement.sqlite, params).rowcount
        except _REFUSALS as error:
            raise translated(error) from error

    def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for every row of parameters; raises like `fetch`."""
        try:
            text = statement.postgres if self.dialect == POSTGRES else statement.sqlite
            self._cursor.executemany(text, rows)
        except _REFUSALS as error:
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
        if self.dialect == POSTGRES:
            self._plain("begin")
        else:
            self._take_turn()
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
        except DRIVER_ERRORS:
            return

    def _plain(self, sql: str) -> None:
        try:
            self._cursor.execute(sql)
        except DRIVER_ERRORS as error:
            if sql == "commit":
                self._rollback()
            raise translated(error) from error

    def _take_turn(self) -> None:
        """BEGIN IMMEDIATE, asking for the file every other millisecond.

        SQLite's own waiting naps for 0.1 s at last: beside a busy writer it was seen to miss every gap for seconds, and
        a beat or a claim with it.
        """
        patience_ms = self._cursor.execute("pragma busy_timeout").fetchone()[0]
        give_up_at = clock.monotonic() + patience_ms / 1_000
        self._cursor.execute("pragma busy_timeout = 0")
        try:
            while not self._has_begun(give_up_at):
                sleep(random.uniform(*_NAPS_S))
        except DRIVER_ERRORS as error:
            raise translated(error) from error
        finally:
            # It answers with a row; one left unread keeps the statement active, and no function can be defined beside it.
            self._cursor.execute(f"pragma busy_timeout = {patience_ms}").fetchall()

    def _has_begun(self, give_up_at: float) -> bool:
        try:
            self._cursor.execute("begin immediate")
        except sqlite.OperationalError as error:
            if "locked" not in str(error) or clock.monotonic() > give_up_at:
                raise
            return False
        return True

    def _rollback(self) -> None:
        try:
            if self.in_transaction:
                self._cursor.execute("rollback")
        except DRIVER_ERRORS:
            self.close()


def _prepares(statement: Statement) -> bool | None:
    """None: psycopg's own choice, which is to keep the plan from the sixth time on."""
    return False if statement.replans else None


def translated(error: Exception) -> StoreError:
    """The error of this package for a driver's error; its text names no parameters."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if any(mark in text.lower() for mark in _UNUSABLE):
        return StoreInvalid(f"the store cannot be used: {text}")
    if isinstance(error, _LOST + POOL_ERRORS):
        return StoreUnavailable(f"the store does not answer: {masked(text)}")
    return StoreError(f"the store refused a statement: {masked(text)}")


def _plain_cursor(raw: Any, dialect: str) -> Any:
    """A cursor that returns tuples, whatever the caller's own cursors are."""
    if dialect != POSTGRES:
        cursor = raw.cursor()
        cursor.row_factory = None
        return cursor
    cursor = psycopg.Cursor(raw, row_factory=tuple_row)
    cursor.format = psycopg.pq.Format.BINARY
    return cursor

"""Submits inside the caller's own transaction follow its fate, and workers are woken after its commit."""

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import peewee
import psycopg
import pytest
from playhouse.pool import PooledPostgresqlDatabase
from psycopg.rows import dict_row

from lattice_tasks import Lattice
from lattice_tasks.errors import InvalidOperation, StoreError
from lattice_tasks.store.engine import Statement
from tests.services import fresh_database
from tests.working import heard, opened, rows, states, stored, until, working

try:
    from pysqlite3 import dbapi2 as sqlite
except ImportError:
    import sqlite3 as sqlite  # type: ignore[no-redef]

pytestmark = pytest.mark.recycled

CREATE = "create table mine (value integer)"
INSERT = "insert into mine (value) values (1)"
READ_COMMITTED, REPEATABLE_READ = psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ


class Caller:
    """Somebody's own connection, or database, and how they begin and end a transaction on it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.connection: Any = None
        match kind:
            case "psycopg":
                self.connection = psycopg.connect(url)
            case "psycopg autocommit":
                self.connection = psycopg.connect(url, autocommit=True)
            case "psycopg dicts":
                self.connection = psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor)
            case "peewee":
                self.connection = PooledPostgresqlDatabase(url, prefer_psycopg3=True)
            case "peewee sqlite":
                self.connection = peewee.SqliteDatabase(url.removeprefix("sqlite:///"), pragmas={"journal_mode": "wal"})
            case "sqlite":
                self.connection = sqlite.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
        if self.is_peewee:
            self.connection.connect()

    @property
    def is_peewee(self) -> bool:
        return isinstance(self.connection, peewee.Database)

    def run(self, sql: str) -> None:
        self.connection.execute_sql(sql) if self.is_peewee else self.connection.execute(sql)

    def begin(self) -> None:
        if self.is_peewee:
            self.connection.begin()
        elif self.kind != "psycopg" and self.kind != "psycopg dicts":
            self.connection.execute("begin")

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


POSTGRES_KINDS = ("psycopg", "peewee")
ODD_KINDS = ("psycopg autocommit", "psycopg dicts")
SQLITE_KINDS = ("peewee sqlite", "sqlite")


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.postgres) for kind in POSTGRES_KINDS] + [*SQLITE_KINDS],
)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Lattice, Caller]]:
    """A lattice that nobody has used yet on a migrated store, and a caller with a table of its own."""
    engine = "sqlite" if request.param in SQLITE_KINDS else "postgres"
    url = request.getfixturevalue(f"{engine}_url")
    with opened(url) as first:
        first.migrate()
    with opened(url) as lattice, closing(Caller(request.param, url)) as caller:
        caller.begin()
        caller.run(CREATE)
        caller.commit()
        yield lattice, caller


def test_a_submit_commits_together_with_what_the_caller_wrote(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place

    with lattice.transaction(caller.connection):
        caller.run(INSERT)
        job = lattice.submit("q", "idle", (1,))
        many = lattice.submit_calls("q", "idle", [((n,), {}) for n in range(3)], {})
        assert seen_from_outside(lattice) == 0

    assert states([job, *many]) == ["waiting"] * 4
    assert seen_from_outside(lattice) == 4
    assert rows(lattice, "select count(*) from mine") == [(1,)]


@pytest.mark.parametrize("kind", ODD_KINDS)
def test_a_connection_may_be_set_up_as_its_owner_likes(postgres_url: str, kind: str) -> None:
    with opened(postgres_url) as lattice, closing(Caller(kind, postgres_url)) as caller:
        with lattice.transaction(caller.connection):
            caller.run(CREATE)
            lattice.submit("q", "idle", (1,), key="k")
            assert not lattice.submit("q", "idle", (1,), key="k").created
            assert seen_from_outside(lattice) == 0
        with suppress(ZeroDivisionError), lattice.transaction(caller.connection):
            lattice.submit("q", "idle")
            raise ZeroDivisionError
        caller.begin()
        with lattice.joining(caller.connection):
            lattice.submit("q", "idle")
        caller.commit()
        assert seen_from_outside(lattice) == 2
        if kind == "psycopg autocommit":
            with pytest.raises(InvalidOperation, match=r"use lattice\.transaction"), lattice.joining(caller.connection):
                pass


def test_a_submit_is_rolled_back_together_with_what_the_caller_wrote(place: tuple[Lattice, Caller]) -> None:
    """C01: nothing is ever delivered."""
    lattice, caller = place

    with suppress(ZeroDivisionError), lattice.transaction(caller.connection):
        caller.run(INSERT)
        lattice.submit("q", "idle", (1,), key="k")
        raise ZeroDivisionError

    assert (stored(lattice), stored(lattice, "ready")) == (0, 0)
    assert rows(lattice, "select count(*) from mine") == [(0,)]
    again = lattice.submit("q", "idle", (1,), key="k")
    assert (again.created, again.refresh().state) == (True, "waiting")


def test_a_queue_that_was_rolled_back_is_not_submitted_to(place: tuple[Lattice, Caller]) -> None:
    """L-40: whatever becomes of the transaction that would have made it, a queue has its tasks."""
    lattice, caller = place
    with suppress(ZeroDivisionError), lattice.transaction(caller.connection):
        lattice.submit("first", "idle")
        raise ZeroDivisionError

    lattice.submit("second", "idle")
    lattice.submit("first", "idle")

    assert [lattice.queues.depth(name).waiting for name in ("first", "second")] == [1, 1]


def test_workers_are_woken_after_the_commit_and_only_then(place: tuple[Lattice, Caller]) -> None:
    """C01: a consumer never sees what is not committed."""
    lattice, caller = place
    ran: list[int] = []

    @lattice.task(queue="q")
    def note(number: int) -> None:
        ran.append(number)

    note.submit(0)
    woken: list[object] = []
    with working(lattice):
        until(lambda: ran == [0])
        lattice._notifier.subscribe([lattice.queues.get("q").id], lambda *told: woken.append(told))
        with lattice.transaction(caller.connection):
            note.submit(1)
            note.submit(2)
            assert woken == []
        assert len(woken) == 1
        until(lambda: sorted(ran) == [0, 1, 2])
        with suppress(ZeroDivisionError), lattice.transaction(caller.connection):
            note.submit(3)
            raise ZeroDivisionError
        assert len(woken) == 1


def test_joining_follows_a_transaction_that_is_open_already(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place

    for end, expected in ((caller.rollback, 0), (caller.commit, 2)):
        caller.begin()
        caller.run(INSERT)
        with lattice.joining(caller.connection):
            lattice.submit("q", "idle")
        with lattice.joining(caller.connection):
            lattice.submit("q", "idle")
        assert seen_from_outside(lattice) == 0
        end()
        assert seen_from_outside(lattice) == expected


def test_what_was_joined_is_found_without_a_wake_up(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place
    ran: list[int] = []

    @lattice.task(queue="q")
    def note(number: int) -> None:
        ran.append(number)

    note.submit(0)
    with working(lattice):
        until(lambda: ran == [0])
        caller.begin()
        with lattice.joining(caller.connection):
            note.submit(1)
        caller.commit()
        until(lambda: ran == [0, 1], patience_s=2)


def test_a_block_ends_with_its_thread_and_its_transaction(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place
    lattice.submit("q", "idle")
    with lattice.transaction(caller.connection):
        assert lattice.engine.is_joined
        elsewhere: list[bool] = []
        thread = threading.Thread(target=lambda: elsewhere.append(lattice.engine.is_joined))
        thread.start()
        thread.join()
    assert elsewhere == [False]
    assert not lattice.engine.is_joined
    with lattice.transaction(caller.connection):  # and can be begun again
        lattice.submit("q", "idle")
    assert seen_from_outside(lattice) == 2


def test_an_error_of_a_submit_leaves_the_transaction_to_the_caller(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place

    with lattice.transaction(caller.connection):
        caller.run(INSERT)
        with pytest.raises(ValueError, match="JSON"):
            lattice.submit("q", "idle", ({1},))
        lattice.submit("q", "idle", (1,))

    assert (seen_from_outside(lattice), rows(lattice, "select count(*) from mine")) == (1, [(1,)])


def test_beginning_inside_an_open_transaction_is_refused(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place
    caller.begin()
    caller.run(INSERT)

    with pytest.raises(InvalidOperation, match=r"use lattice\.joining"), lattice.transaction(caller.connection):
        pass

    caller.commit()
    assert rows(lattice, "select count(*) from mine") == [(1,)]


def test_joining_without_a_transaction_is_refused(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place
    if caller.kind in ("psycopg", "sqlite"):
        pytest.skip("the first statement opens one by itself")

    with pytest.raises(InvalidOperation, match=r"use lattice\.transaction"), lattice.joining(caller.connection):
        pass


def test_the_callers_own_nested_transactions_go_on_working(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place
    nested = {"psycopg": "transaction", "peewee": "atomic"}.get(caller.kind.split()[0])
    if nested is None:
        pytest.skip("sqlite3 knows no nested ones")

    with lattice.transaction(caller.connection):
        lattice.submit("q", "idle", (1,))
        with suppress(ZeroDivisionError), getattr(caller.connection, nested)():
            lattice.submit("q", "idle", (2,))
            raise ZeroDivisionError
        with getattr(caller.connection, nested)():
            lattice.submit("q", "idle", (3,))
        assert seen_from_outside(lattice) == 0

    bodies = {bytes(body) for (body,) in rows(lattice, "select body from lattice_invocation")}
    assert bodies == {b'{"args":[1]}', b'{"args":[3]}'}


def test_higher_isolation_is_refused(postgres_url: str) -> None:
    with opened(postgres_url) as lattice, psycopg.connect(postgres_url) as connection:
        lattice.migrate()
        connection.isolation_level = REPEATABLE_READ
        for entering in (lattice.transaction, lattice.joining):
            with pytest.raises(InvalidOperation, match="this one is REPEATABLE READ"), entering(connection):
                pass
            connection.rollback()
        connection.isolation_level = READ_COMMITTED
        with lattice.transaction(connection):
            lattice.submit("q", "idle")
        assert stored(lattice) == 1


@pytest.mark.parametrize("other", [None, "a text", 7, object()])
def test_anything_else_cannot_be_joined(store_url: str, other: object) -> None:
    with opened(store_url) as lattice:
        for entering in (lattice.transaction, lattice.joining):
            with pytest.raises(InvalidOperation, match="cannot join"), entering(other):
                pass


def test_a_connection_of_the_other_engine_or_a_closed_one_cannot_be_joined(postgres_url: str, sqlite_url: str) -> None:
    closed = peewee.SqliteDatabase(sqlite_url.removeprefix("sqlite:///"))
    with opened(sqlite_url) as lattice, psycopg.connect(postgres_url) as connection:
        for other in (connection, closed):
            with pytest.raises(InvalidOperation, match="cannot join"), lattice.transaction(other):
                pass


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_connection_to_another_database_cannot_be_joined(
    postgres_server: str, postgres_url: str, has_tables: bool
) -> None:
    """An accepted task is not lost: there no worker of this store would look."""
    with fresh_database(postgres_server) as elsewhere, opened(postgres_url) as lattice:
        if has_tables:
            with opened(elsewhere) as other:
                other.submit("q", "theirs")
        with psycopg.connect(elsewhere) as connection:
            with pytest.raises(InvalidOperation, match="another database"), lattice.transaction(connection):
                lattice.submit("q", "idle")
            connection.execute("select 1")
            with pytest.raises(InvalidOperation, match="another database"), lattice.joining(connection):
                lattice.submit("q", "idle")


@pytest.mark.parametrize("is_used", [False, True])
def test_a_connection_to_another_file_cannot_be_joined(tmp_path: Path, sqlite_url: str, is_used: bool) -> None:
    with opened(sqlite_url) as lattice:
        if is_used:
            lattice.submit("q", "idle")
        for place in (str(tmp_path / "other.db"), ":memory:"):
            with closing(sqlite.connect(place)) as connection:
                connection.execute("begin")
                with pytest.raises(InvalidOperation, match="another database"), lattice.joining(connection):
                    lattice.submit("q", "idle")
                tables = connection.execute("select count(*) from sqlite_master").fetchone()[0]
                assert tables == 0


def test_a_file_is_the_same_by_another_name(tmp_path: Path, sqlite_url: str) -> None:
    with opened(sqlite_url) as lattice:
        lattice.migrate()
        (tmp_path / "link.db").symlink_to(tmp_path / "lattice.db")
        with closing(sqlite.connect(str(tmp_path / "link.db"))) as connection:
            with lattice.transaction(connection):
                lattice.submit("q", "idle")
        assert stored(lattice) == 1


def test_a_transaction_that_cannot_commit_stores_nothing_and_wakes_nobody(postgres_url: str) -> None:
    with opened(postgres_url) as lattice, psycopg.connect(postgres_url) as connection:
        lattice.queues.add("q")
        woken: list[object] = []
        lattice._notifier.subscribe([lattice.queues.get("q").id], lambda *told: woken.append(told))
        with pytest.raises((psycopg.Error, StoreError)):  # noqa: PT012 - the end of the block raises
            with lattice.transaction(connection):
                lattice.submit("q", "idle")
                with psycopg.connect(postgres_url, autocommit=True) as other:
                    other.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))

        assert (stored(lattice), woken) == (0, [])


def test_submits_are_told_once_the_transaction_is_through(place: tuple[Lattice, Caller]) -> None:
    lattice, caller = place
    events = heard(lattice)

    with suppress(ZeroDivisionError), lattice.transaction(caller.connection):
        lattice.submit("q", "idle")
        raise ZeroDivisionError
    assert events.of("task.submitted") == []
    with lattice.transaction(caller.connection):
        lattice.submit("q", "idle")
        assert events.of("task.submitted") == []

    assert [event["count"] for event in events.of("task.submitted")] == [1]


def seen_from_outside(lattice: Lattice) -> int:
    """How many invocations another connection sees."""
    session = lattice.engine.open_session()
    with closing(session):
        return session.fetch(Statement("select count(*) from lattice_invocation"))[0][0]

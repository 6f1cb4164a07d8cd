"""The store's door: what cannot be opened is told in one line, what breaks is replaced, and time is the store's."""

import multiprocessing
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from lattice_tasks import Lattice, LatticeError
from lattice_tasks.errors import SettingsError, StoreError, StoreInvalid, StoreUnavailable
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.session import Statement
from tests.stores import fresh_engine
from tests.working import done, heard, opened, rows, stored, until, until_state, working

CANARY = "s3cr3t-CANARY"
COUNT = Statement("select count(*) from lattice_namespace")
ADD = Statement("insert into lattice_namespace (name, wake_id, created_at) values (%s, 'w', {now})")


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refused(url: str, **settings: Any) -> LatticeError:
    """What a submit to such a store says."""
    with pytest.raises(LatticeError) as told:
        with opened(url, **settings) as lattice:
            lattice.submit("q", "idle")
    return told.value


# --- what cannot be opened --------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_reached_is_told_in_one_line_in_time_without_the_password() -> None:
    error = refused(f"postgresql://me:{CANARY}@127.0.0.1:{free_port()}/db", store_timeout_ms=500)

    assert isinstance(error, StoreUnavailable)
    assert error.exit_code == 69
    assert str(error).count("\n") == 0
    assert CANARY not in str(error)
    assert "the store does not answer" in str(error)


@pytest.mark.parametrize("content", [b"this is no database, " * 100, b"SQLite format 3\0" + b"\xff" * 4_000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)

    error = refused(f"sqlite:///{file}")

    assert isinstance(error, StoreInvalid)
    assert error.exit_code == 78
    assert str(error).count("\n") == 0
    assert file.read_bytes() == content


def test_a_folder_or_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "lattice.db"):
        error = refused(f"sqlite:///{path}")
        assert isinstance(error, StoreInvalid), error
        assert error.exit_code == 78


def test_a_file_that_may_not_be_written_is_refused() -> None:
    with TemporaryDirectory() as name:  # not the test's own folder, in which nobody else may look
        folder = Path(name)
        url = f"sqlite:///{folder / 'lattice.db'}"
        with opened(url) as lattice:
            lattice.queues.add("q")
            lattice.engine.close()
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)

        told = as_nobody(url)

        assert told.startswith("StoreInvalid 78 the store cannot be used:"), told
        folder.chmod(stat.S_IRWXU)


def as_nobody(url: str) -> str:
    """What a user without rights is told; a process of its own, because root may write everywhere."""
    told, tell = multiprocessing.get_context("fork").Pipe(duplex=False)

    def submit() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            Lattice(url, set_default=False, log_level="critical").submit("q", "idle")
            tell.send("it was accepted")
        except LatticeError as error:
            tell.send(f"{type(error).__name__} {error.exit_code} {error}")
        except BaseException as error:
            tell.send(repr(error))
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=submit)
    child.start()
    assert told.poll(20)
    answer = told.recv()
    child.join(timeout=10)
    return str(answer)


@pytest.mark.parametrize("url", ["postgresql://host:notaport/db", "postgresql://h/db?nonsense=1"])
def test_a_url_that_makes_no_sense_is_one_line(url: str) -> None:
    with pytest.raises((SettingsError, StoreError)) as told:
        Lattice(url, set_default=False, store_timeout_ms=200).submit("q", "idle")
    assert str(told.value).count("\n") == 0


def test_a_broker_that_cannot_be_reached_holds_up_no_submit_and_no_work(store_url: str) -> None:
    url = f"amqp://guest:{CANARY}@127.0.0.1:{free_port()}/"
    with opened(store_url, broker_url=url) as lattice:
        events = heard(lattice)

        @lattice.task(queue="q")
        def work() -> int:
            return 1

        jobs = [work.submit() for _ in range(3)]
        with working(lattice):
            assert [job.result(timeout=10) for job in jobs] == [1, 1, 1]
            told = until(lambda: events.of("broker.unavailable"))

    assert CANARY not in repr(told)


def test_a_name_of_a_file_may_hold_blanks_and_percent_signs(tmp_path: Path) -> None:
    (tmp_path / "my store").mkdir()
    with opened(f"sqlite:///{tmp_path}/my%20store/50%25%3F.db") as lattice:
        lattice.submit("q", "idle")
    assert (tmp_path / "my store" / "50%?.db").is_file()


def test_a_relative_path_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("sqlite:///here.db") as lattice:
        lattice.submit("q", "idle")
    assert (tmp_path / "here.db").is_file()


# --- sessions and transactions ----------------------------------------------------------------------------------------


def test_a_transaction_is_all_or_nothing_and_the_outermost_decides(engine: Engine) -> None:
    with engine.session() as session:
        with pytest.raises(ZeroDivisionError), session.transaction():  # noqa: PT012
            session.execute(ADD, ("a",))
            with session.transaction():
                session.execute(ADD, ("b",))
            assert session.in_transaction
            raise ZeroDivisionError
        assert not session.in_transaction
        assert session.fetch(COUNT) == [(0,)]

        with session.transaction(), session.transaction():
            session.execute(ADD, ("c",))
    with engine.session() as session:
        assert session.fetch(COUNT) == [(1,)]


def test_an_error_inside_a_transaction_is_ours_and_leaves_a_clean_session(engine: Engine) -> None:
    with engine.session() as session:
        with pytest.raises(StoreError, match="refused a statement") as told, session.transaction():  # noqa: PT012
            session.execute(ADD, ("a",))
            session.execute(ADD, ("a",))
        assert not isinstance(told.value, StoreUnavailable | StoreInvalid)
        assert not session.in_transaction
        assert session.fetch(COUNT) == [(0,)]


def test_sessions_of_one_thread_are_one_connection_and_of_two_are_two(engine: Engine) -> None:
    with engine.session() as first, engine.session() as second:
        assert first.raw is second.raw
        other: list[Any] = []

        def look() -> None:
            with engine.session() as session:
                other.append(session.raw)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert other[0] is not first.raw


def test_many_writers_of_one_store_wait_for_each_other(engine: Engine) -> None:
    """Reliability 17: on SQLite BEGIN IMMEDIATE, never a refused upgrade."""
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for n in range(10):
                with engine.session() as session, session.transaction():
                    session.fetch(COUNT)
                    session.execute(ADD, (f"{number}-{n}",))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    with engine.session() as session:
        assert session.fetch(COUNT) == [(80,)]


def test_a_connection_that_the_server_ended_is_replaced(postgres_url: str) -> None:
    """C36"""
    with opened(postgres_url) as lattice, psycopg.connect(postgres_url, autocommit=True) as admin:
        first = lattice.submit("q", "idle")
        admin.execute(
            """select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()"""
        )
        second = lattice.submit("q", "idle")
        assert {first.refresh().state, second.refresh().state} == {"waiting"}
        assert stored(lattice) == 2


def test_a_session_that_was_ended_inside_a_transaction_is_reported(postgres_url: str) -> None:
    """C36: never half replayed."""
    with fresh_engine(postgres_url) as engine, psycopg.connect(postgres_url, autocommit=True) as admin:
        with engine.session() as session, pytest.raises(StoreUnavailable), session.transaction():  # noqa: PT012
            session.execute(ADD, ("a",))
            admin.execute("select pg_terminate_backend(%s)", (session.raw.info.backend_pid,))
            session.execute(ADD, ("b",))
        with engine.session() as session:
            assert session.fetch(COUNT) == [(0,)]


# --- time -------------------------------------------------------------------------------------------------------------


def test_due_times_are_compared_by_the_stores_clock(store_url: str) -> None:
    """A clock that is two hours ahead, of the store, makes due what is put off by one."""
    with opened(store_url) as lattice:
        job = lattice.submit("q", "work", delay=timedelta(hours=1))
    with opened(store_url, clock_offset_ms=2 * 3_600_000) as ahead:
        ahead.task(queue="q", name="work")(lambda: None)
        with working(ahead):
            until_state(ahead.job(job.id), "succeeded")


def test_an_instant_is_the_same_whatever_the_zones_of_session_and_process(store_url: str) -> None:
    """C57"""
    due = datetime(2031, 3, 30, 2, 30, tzinfo=timezone(timedelta(hours=5)))
    if store_url.startswith("postgresql"):
        with closing(psycopg.connect(store_url, autocommit=True)) as admin:
            admin.execute(f"alter database {admin.info.dbname} set timezone = 'America/Los_Angeles'")
    with opened(store_url) as lattice:
        lattice.submit("q", "idle", delay=due)
        lattice.submit("q", "idle", delay=due.astimezone(UTC))
        lattice.submit("q", "idle", deadline=due)
        now = datetime.now(UTC)
        job = lattice.submit("q", "idle")

        expected = int((due - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
        assert rows(lattice, "select due_at from lattice_scheduled") == [(expected,)] * 2
        assert rows(lattice, "select deadline_at from lattice_invocation where deadline_at > 0") == [(expected,)]
        assert abs(job.refresh().submitted_at - now) < timedelta(seconds=5)


def test_the_settings_for_a_pooler_work_without_one_too(postgres_url: str) -> None:
    """C37"""
    with opened(postgres_url, pgbouncer=True) as lattice:

        @lattice.task(queue="q")
        def work(number: int) -> int:
            return number

        jobs = work.submit_many([(number,) for number in range(20)])
        with working(lattice):
            done(lattice, "q")
            assert [job.result(timeout=5) for job in jobs] == list(range(20))

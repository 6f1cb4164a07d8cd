"""What a process costs the others: connections, statements, threads, modules."""

import configparser
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from lattice_tasks import Lattice
from lattice_tasks.store.session import Session
from tests.working import Gate, done, heard, opened, until, working

CONNECTIONS = """select pid from pg_stat_activity
    where datname = current_database() and application_name = 'lattice_tasks' and pid <> pg_backend_pid()"""


class Server:
    """The server's own view of who is connected."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, application_name="the test")

    def connections(self) -> int:
        return len(self._connection.execute(CONNECTIONS).fetchall())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def server(postgres_url: str) -> Iterator[Server]:
    one = Server(postgres_url)
    yield one
    one.close()


def declare(lattice: Lattice, queues: int, gate: Gate | None = None) -> list[Any]:
    tasks = []
    for number in range(queues):

        def work(number: int = number) -> int:
            if gate is not None:
                gate.pass_through()
            return number

        tasks.append(lattice.task(queue=f"q{number}", name=f"work{number}")(work))
    return tasks


def test_ten_queues_in_a_worker_cost_one_connection_for_work_and_one_for_heartbeats(
    postgres_url: str, server: Server
) -> None:
    """C33"""
    with opened(postgres_url) as client:
        for task in declare(client, 10):
            task.submit_many([()] * 20)
    until(lambda: server.connections() == 0)
    gate = Gate()
    with opened(postgres_url, namespace="default") as lattice:
        declare(lattice, 10, gate)
        with working(lattice, threads=4):
            gate.await_entered(4)
            until(lambda: server.connections() == 2, "two connections while it works")
            gate.open()
            until(lambda: gate.entered == 200)
            until(lambda: len(lattice.broker._pump._held) == 0)
            until(lambda: server.connections() == 2, "two connections at rest")
        until(lambda: server.connections() == 0, "none after it has stopped")


def test_an_idle_worker_asks_the_store_at_most_five_times_a_second(
    postgres_url: str, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    for name in ("fetch", "execute", "execute_many", "_plain"):
        monkeypatch.setattr(Session, name, counting(getattr(Session, name), asked))
    with opened(postgres_url, broker_url=rabbitmq_url, namespace=f"idle-{uuid4()}") as lattice:
        events = heard(lattice)
        tasks = declare(lattice, 10)
        with working(lattice, threads=4):
            tasks[0].submit()
            done(lattice, "q0")
            until(lambda: lattice._notifier.is_connected)
            until(lambda: len(lattice._notifier._consumers) == 10)
            settled, started = sum(asked.values()), time.monotonic()
            until(lambda: time.monotonic() - started > 3)
            per_second = (sum(asked.values()) - settled) / (time.monotonic() - started)
        assert events.of("broker.unavailable") == []
    assert per_second <= 5, asked.most_common(5)


def counting(original: Any, asked: Counter[str]) -> Any:
    def run(session: Session, statement: Any, *args: Any) -> Any:
        asked[getattr(statement, "postgres", str(statement))[:60]] += 1
        return original(session, statement, *args)

    return run


def test_a_stopped_worker_leaves_no_thread_and_no_row_behind(store_url: str) -> None:
    before = set(threading.enumerate())
    with opened(store_url) as lattice:
        tasks = declare(lattice, 3)
        with working(lattice):
            tasks[0].submit()
            done(lattice, "q0")
        with lattice.engine.session() as session:
            assert session.raw.execute("select count(*) from lattice_worker").fetchone()[0] == 0
    left = {thread for thread in set(threading.enumerate()) - before if thread.is_alive()}

    assert {thread.name for thread in left} == set()


def test_a_closed_lattice_holds_nothing_and_opens_again(postgres_url: str, server: Server) -> None:
    with opened(postgres_url) as lattice:
        lattice.submit("q", "idle")
        assert server.connections() == 1
        lattice.close()
        until(lambda: server.connections() == 0)
        lattice.submit("q", "idle")
        assert lattice.queues.depth("q").waiting == 2


@pytest.mark.parametrize("module", ["lattice_tasks", "lattice_tasks.broker.worker_child"])
def test_a_worker_does_not_pay_for_the_command_line(module: str) -> None:
    program = f"import sys, {module}; print({{name.split('.')[0] for name in sys.modules}} & {{'click', 'wcwidth'}})"

    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "set()"


def test_we_do_not_install_rich() -> None:
    """structlog imports it, with pygments, wherever it is installed: 5 MiB in each process."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")

    required = re.findall(r"^[\w-]+", setup["options"]["install_requires"], re.MULTILINE)

    assert "structlog" in required
    assert "rich" not in required

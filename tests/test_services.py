"""The servers of the tests themselves: started, shared, killed, and nobody else's touched."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pika
import psycopg
import pytest

from tests import servers, services
from tests.servers import Postgres, RabbitMQ, free_port
from tests.services import fresh_database, keep, release, shared

EPHEMERAL = 32_768


class Counted:
    """A service that counts its starts and stops."""

    url = "counted://"

    def __init__(self) -> None:
        self.starts = self.stops = 0

    def start(self) -> None:
        self.starts += 1

    def stop(self) -> None:
        self.stops += 1


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def declare(url: str, queue: str, *, passive: bool = False) -> int:
    """Returns the number of messages on the queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        declared = connection.channel().queue_declare(queue, durable=True, passive=passive)
        return declared.method.message_count


def test_every_test_gets_an_empty_database_of_its_own(postgres_server: str, postgres_url: str) -> None:
    with fresh_database(postgres_server) as other_url:
        tables = rows(other_url, "select count(*) from information_schema.tables where table_schema = 'public'")

    assert other_url != postgres_url
    assert tables == [(0,)]


def test_a_database_is_dropped_with_whoever_is_still_connected(postgres_server: str) -> None:
    with fresh_database(postgres_server) as url:
        left = psycopg.connect(url)

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
    left.close()


def test_postgres_is_as_durable_as_it_comes(postgres_url: str) -> None:
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert rows(postgres_url, f"show {setting}") == [("on",)]


def test_text_without_a_collation_is_not_sorted_by_its_bytes(own_postgres_url: str) -> None:
    """Else a forgotten COLLATE "C" would go unseen."""
    assert rows(own_postgres_url, "select 'a' < 'B', 'a' collate \"C\" < 'B'") == [(True, False)]


def test_a_killed_postgres_comes_back_with_what_was_committed(own_postgres: Postgres, own_postgres_url: str) -> None:
    with psycopg.connect(own_postgres_url, autocommit=True) as connection:
        connection.execute("create table kept as select 1 as n")
        own_postgres.kill()

    assert own_postgres.pid is None
    own_postgres.start()
    assert rows(own_postgres_url, "select n from kept") == [(1,)]


def test_a_restarted_postgres_is_another_process_on_the_same_port(own_postgres: Postgres) -> None:
    own_postgres.start()
    pid, url = own_postgres.pid, own_postgres.url

    own_postgres.restart()

    assert own_postgres.url == url
    assert own_postgres.pid not in (pid, None)


def test_a_killed_rabbitmq_comes_back_with_its_durable_queues(own_rabbitmq: RabbitMQ) -> None:
    declare(own_rabbitmq.url, "kept")

    own_rabbitmq.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        declare(own_rabbitmq.url, "kept", passive=True)
    own_rabbitmq.start()

    assert declare(own_rabbitmq.url, "kept", passive=True) == 0


def test_the_servers_listen_on_loopback_only(own_postgres: Postgres, own_rabbitmq: RabbitMQ) -> None:
    psutil = pytest.importorskip("psutil")

    for server in (own_postgres, own_rabbitmq):
        listening = [c.laddr for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"]
        assert server.port in {address.port for address in listening}
        assert {address.ip for address in listening} == {"127.0.0.1"}


def test_a_second_object_finds_the_running_server(own_postgres: Postgres) -> None:
    own_postgres.start()

    other = Postgres(own_postgres.folder)
    other.start()

    assert (other.pid, other.url) == (own_postgres.pid, own_postgres.url)


def test_a_process_that_was_given_the_pid_of_a_dead_server_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = Postgres(tmp_path)
    server._write_state(pid=stranger.pid, port=free_port())

    server.stop()
    server.kill()

    assert server.pid is None
    assert stranger.poll() is None
    stranger.communicate(b"\n")


def test_the_last_user_stops_a_shared_service(tmp_path: Path) -> None:
    service = Counted()

    with shared(service, tmp_path), shared(service, tmp_path):
        pass

    assert (service.starts, service.stops) == (2, 1)


def test_a_kept_service_outlives_its_users_until_it_is_released(tmp_path: Path) -> None:
    service = Counted()
    keep(service, tmp_path)

    with shared(service, tmp_path):
        assert not release(service, tmp_path)
        keep(service, tmp_path)
    assert service.stops == 0

    assert release(service, tmp_path)
    assert service.stops == 1


def test_a_user_that_was_killed_no_longer_holds_the_service(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.services import Given, shared\n"
        "with shared(Given(''), Path(sys.argv[1])): print('in', flush=True); input()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=services.CHECKOUT
    )
    assert user.stdout.readline() == b"in\n"
    service = Counted()
    assert not release(service, tmp_path)

    user.kill()
    user.communicate()

    assert release(service, tmp_path)


def test_ports_keep_clear_of_outgoing_connections() -> None:
    assert all(free_port() < EPHEMERAL for _ in range(20))


def test_a_given_address_is_used_and_never_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATTICE_TEST_POSTGRES_URL", "postgresql://elsewhere/x")

    with shared(services.choose(Postgres), tmp_path) as service:
        assert service.url == "postgresql://elsewhere/x"


def test_without_any_server_one_line_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATTICE_TEST_RABBITMQ_URL", raising=False)
    monkeypatch.setattr(RabbitMQ, "programs", ("/nowhere/no-such-server",))
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(services.Unavailable, match=r"^RabbitMQ is not installed: install rabbitmq-server, or docker"):
        services.choose(RabbitMQ)


def test_run_gives_a_command_both_addresses_and_its_exit_code(postgres_server: str, rabbitmq_url: str) -> None:
    program = "import os; print(os.environ['LATTICE_STORE_URL'], os.environ['LATTICE_BROKER_URL']); raise SystemExit(7)"

    done = subprocess.run(
        [sys.executable, "-m", "tests.services", "run", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=services.CHECKOUT,
    )

    assert done.returncode == 7, done.stderr
    store_url, broker_url = done.stdout.split()
    assert urlsplit(store_url).netloc == urlsplit(postgres_server).netloc
    assert broker_url == rabbitmq_url


def test_a_server_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "RETRY_SECONDS", 0)
    server = Postgres(services.home() / f"own-broken-{os.getpid()}", {"shared_buffers": "nonsense"})

    try:
        with pytest.raises(services.Unavailable, match="shared_buffers"):
            server.start()
    finally:
        shutil.rmtree(server.folder)

"""Which PostgreSQL and RabbitMQ the tests, the benchmarks and `make dev` use, and who ends them.

The address in LATTICE_TEST_POSTGRES_URL or LATTICE_TEST_RABBITMQ_URL; else a private server from the installed
binaries, installed with apt first where that is possible; else `docker compose`; else `Unavailable`. Several runs
share one server: the first starts it, the last stops it.

    python -m tests.services up              start both and leave them running
    python -m tests.services down            stop them, unless another run still uses them
    python -m tests.services clean           stop them and remove their data
    python -m tests.services run COMMAND...  start both, run the command with their addresses, stop them
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.servers import CONF, Postgres, RabbitMQ, Server, Unavailable, find_program, free_port, unprivileged

CHECKOUT = Path(__file__).resolve().parents[1]
KINDS: tuple[type[Server], ...] = (Postgres, RabbitMQ)
DEV_DATABASE = "lattice"


class Service(Protocol):
    """A server that answers at `url` between `start` and `stop`; starting twice is harmless."""

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class Given:
    """Somebody else's: used, never started or stopped."""

    def __init__(self, url: str) -> None:
        self.url = url

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Composed:
    """A container of conf/compose.yaml."""

    def __init__(self, service: str, folder: Path) -> None:
        self._service = service
        self._port_file = folder / "compose.port"
        folder.mkdir(parents=True, exist_ok=True)
        if not self._port_file.exists():
            self._port_file.write_text(str(free_port()))

    @property
    def url(self) -> str:
        form = {"postgres": "postgresql://lattice:lattice@{}/lattice", "rabbitmq": "amqp://lattice:lattice@{}/%2F"}
        return form[self._service].format(f"127.0.0.1:{self._port_file.read_text()}")

    def start(self) -> None:
        self._compose("up", "--detach", "--wait", "--quiet-pull", self._service)

    def stop(self) -> None:
        self._compose("stop", self._service)

    def _compose(self, *arguments: str) -> None:
        ports = {
            f"LATTICE_{self._service.upper()}_PORT": self._port_file.read_text(),
            "LATTICE_RABBITMQ_MANAGEMENT_PORT": "0",
        }
        project = "lattice-" + _short_hash(CHECKOUT)
        done = subprocess.run(
            ["docker", "compose", "-f", CONF / "compose.yaml", "-p", project, *arguments],
            env=os.environ | ports,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"docker compose {arguments[0]} {self._service} failed:\n{done.stderr[-2000:]}")


def choose(kind: type[Server]) -> Service:
    """The server to use here; not started yet.

    Raises:
        Unavailable: there is none; the text says what would help.
    """
    service = kind.__name__.lower()
    variable = f"LATTICE_TEST_{service.upper()}_URL"
    if url := os.environ.get(variable):
        return Given(url)
    try:
        find_program(kind)
        return kind(folder_of(kind))
    except Unavailable as missing:
        if _has_compose():
            return Composed(service, folder_of(kind))
        raise Unavailable(
            f"{missing}: install {kind.package}, or docker with compose, or name a server in {variable}"
        ) from missing


@contextmanager
def shared(service: Service, folder: Path) -> Iterator[Service]:
    """Use a service together with others: the first starts it, the last stops it, unless it is to be kept.

    Who uses it holds a lock that ends with the process, so a run that was killed counts no longer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "users.lock", "a") as users:
        with _turn(folder):
            service.start()
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield service
        finally:
            with _turn(folder):
                fcntl.flock(users, fcntl.LOCK_UN)
                if not (folder / "kept").exists():
                    _stop_unused(service, users.fileno())


def keep(service: Service, folder: Path) -> None:
    """Start a service and leave it running."""
    folder.mkdir(parents=True, exist_ok=True)
    with _turn(folder):
        service.start()
        (folder / "kept").touch()


def release(service: Service, folder: Path) -> bool:
    """Stop a kept service; False when somebody still uses it, who then stops it."""
    folder.mkdir(parents=True, exist_ok=True)
    with _turn(folder), open(folder / "users.lock", "a") as users:
        (folder / "kept").unlink(missing_ok=True)
        return _stop_unused(service, users.fileno())


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """An empty database on the server, dropped at the end together with whoever is still connected to it."""
    name = f"test_{uuid4().hex[:16]}"
    _administer(server_url, f"create database {name} template template0")
    try:
        yield urlsplit(server_url)._replace(path="/" + name).geturl()
    finally:
        _administer(server_url, f"drop database if exists {name} with (force)")


def empty(url: str) -> None:
    """Take every row out of a database, and every table that is not the product's; nobody else is connected then."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()"""
        )
        connection.execute("set session_replication_role = replica")  # rows go in any order
        with connection.transaction():
            for (table,) in connection.execute(
                "select tablename from pg_tables where schemaname = 'public'"
            ).fetchall():
                if table == "lattice_migration":
                    continue
                verb = "delete from {}" if table.startswith("lattice_") else "drop table {} cascade"
                connection.execute(sql.SQL(verb).format(sql.Identifier(table)))


def folder_of(kind: type[Server]) -> Path:
    return home() / kind.__name__.lower()


def home() -> Path:
    """The folder of the project's own servers: LATTICE_SERVICES_DIR, else .services in the checkout.

    Where the user that runs PostgreSQL cannot get there, one in the system's temporary folder.
    """
    chosen = Path(os.environ.get("LATTICE_SERVICES_DIR") or CHECKOUT / ".services").resolve()
    chosen.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["test", "-x", chosen], cwd="/", check=False, **unprivileged()).returncode == 0:
        return chosen
    spare = Path(tempfile.gettempdir()).resolve() / f"lattice-services-{_short_hash(chosen)}"
    spare.mkdir(mode=0o755, exist_ok=True)
    if spare.is_symlink() or spare.stat().st_uid != os.geteuid():
        raise Unavailable(f"{spare} is somebody else's: name a folder in LATTICE_SERVICES_DIR")
    return spare


def main(arguments: Sequence[str]) -> int:
    """Run one of the verbs of the module docstring; returns the exit code."""
    try:
        match arguments:
            case ["up"]:
                for kind in KINDS:
                    service = choose(kind)
                    keep(service, folder_of(kind))
                    print("export {}='{}'".format(*_variable(kind, service)))
                return 0
            case ["down" | "clean" as verb]:
                for kind in filter(_has_folder, KINDS):
                    if not release(choose(kind), folder_of(kind)):
                        print(f"{kind.name} is still in use; whoever leaves last stops it", file=sys.stderr)
                    elif verb == "clean":
                        shutil.rmtree(folder_of(kind))
                return 0
            case ["run", *command] if command:
                return _run(command)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 69
    print(__doc__, file=sys.stderr)
    return 2


def _run(command: Sequence[str]) -> int:
    with ExitStack() as stack:
        services = {kind: stack.enter_context(shared(choose(kind), folder_of(kind))) for kind in KINDS}
        addresses = dict(_variable(kind, service) for kind, service in services.items())
        child = subprocess.Popen(command, env=os.environ | addresses)
        # Ctrl-C reaches the child from the terminal; the servers have to outlive it.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        return child.wait()


def _has_folder(kind: type[Server]) -> bool:
    return folder_of(kind).exists()


def _variable(kind: type[Server], service: Service) -> tuple[str, str]:
    """The setting of the library that names the service, and its value; makes the database for development."""
    if kind is RabbitMQ:
        return "LATTICE_BROKER_URL", service.url
    url = urlsplit(service.url)
    if url.path == "/postgres":
        with suppress(psycopg.errors.DuplicateDatabase):
            _administer(service.url, f"create database {DEV_DATABASE}")
        url = url._replace(path="/" + DEV_DATABASE)
    return "LATTICE_STORE_URL", url.geturl()


def _administer(server_url: str, statement: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One process at a time decides whether the server of this folder runs."""
    with open(folder / "turn.lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _stop_unused(service: Service, users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    service.stop()
    fcntl.flock(users, fcntl.LOCK_UN)
    return True


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = (["docker", "compose", "version"], ["docker", "info"])
    return all(subprocess.run(question, capture_output=True, check=False).returncode == 0 for question in asked)


def _short_hash(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:10]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

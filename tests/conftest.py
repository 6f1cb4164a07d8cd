"""Stores and servers for the tests; a server is started when the first test asks for it.

A server that cannot be had is a skip at home and a failure when CI is set.
"""

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers import Postgres, RabbitMQ, Server, Unavailable
from tests.services import choose, empty, folder_of, fresh_database, home, shared

S = TypeVar("S", bound=Server)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server to make databases on; shared, so not to be stopped."""
    with _service(Postgres) as url:
        yield url


@pytest.fixture(scope="session")
def recycled_database(postgres_server: str) -> Iterator[str]:
    """One database for all tests with the mark `recycled`."""
    with fresh_database(postgres_server) as url:
        yield url


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """A fresh empty database; with the mark `recycled` a used one, migrated and emptied, at a tenth of the time."""
    if request.node.get_closest_marker("recycled"):
        url = request.getfixturevalue("recycled_database")
        empty(url)
        yield url
        return
    with fresh_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """The URL of a node; shared, so the names of queues have to be the test's own."""
    with _service(RabbitMQ) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'lattice.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest) -> str:
    """A fresh empty store, on each engine in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A server that the module's tests may stop, kill and start again."""
    with _own(Postgres) as server:
        yield server


@pytest.fixture
def own_postgres_url(own_postgres: Postgres) -> Iterator[str]:
    """A fresh empty database on the server that may be stopped."""
    own_postgres.start()
    with fresh_database(own_postgres.url) as url:
        yield url
        own_postgres.start()


@pytest.fixture(scope="module")
def own_rabbitmq() -> Iterator[RabbitMQ]:
    """A node that the module's tests may stop, kill and start again."""
    with _own(RabbitMQ) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test by the servers its fixtures need, so that `-m "not postgres"` holds without being said twice."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            for server in ("postgres", "rabbitmq"):
                if server in fixture:
                    item.add_marker(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed may hold lone surrogates; the process that gathers the reports can only be sent UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@contextmanager
def _service(kind: type[Server]) -> Iterator[str]:
    try:
        service = choose(kind)
        with shared(service, folder_of(kind)):
            yield service.url
    except Unavailable as missing:
        _absent(missing)


@contextmanager
def _own(kind: type[S]) -> Iterator[S]:
    folder = home() / f"own-{kind.__name__.lower()}-{os.getpid()}"
    try:
        with kind(folder) as server:
            yield server
    except Unavailable as missing:
        _absent(missing)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _absent(missing: Unavailable) -> None:
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(str(missing))
    pytest.skip(str(missing))

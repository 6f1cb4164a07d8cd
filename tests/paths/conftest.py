"""A life on Postgres + RabbitMQ, on SQLite alone, or on each in turn."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.paths.fleet import Life

Begin = Callable[..., Life]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begin a life on given addresses; it is ended with all its processes."""
    with ExitStack() as stack:

        def start(store_url: str, broker_url: str = "", **settings: Any) -> Life:
            return stack.enter_context(Life(tmp_path, store_url, broker_url, **settings))

        yield start


@pytest.fixture
def served(begin: Begin, postgres_url: str, rabbitmq_url: str) -> Begin:
    """Begin a life on Postgres + RabbitMQ, both shared: not to be stopped."""
    return lambda **settings: begin(postgres_url, rabbitmq_url, **settings)


@pytest.fixture(params=["sqlite", pytest.param("services", marks=[pytest.mark.postgres, pytest.mark.rabbitmq])])
def anywhere(begin: Begin, request: pytest.FixtureRequest) -> Begin:
    """Begin a life on one SQLite file, and on Postgres + RabbitMQ."""
    if request.param == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        return lambda **settings: begin(url, **settings)
    served: Begin = request.getfixturevalue("served")
    return served

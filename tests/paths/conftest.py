"""A life on Postgres + RabbitMQ, on SQLite alone, or on each in turn.

The addresses come before `begin` in every list: what is set up last is torn down first, and processes have to end before
their servers do.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.paths import wakes
from tests.paths.fleet import Life

Begin = Callable[..., Life]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begin a life on given addresses; it is ended with all its processes, and its wake-up queues are removed."""
    with ExitStack() as stack:

        def start(store_url: str, broker_url: str = "", **settings: Any) -> Life:
            life = Life(tmp_path, store_url, broker_url, **settings)
            stack.callback(wakes.remove, life)
            return stack.enter_context(life)

        yield start


@pytest.fixture
def served(postgres_url: str, rabbitmq_url: str, begin: Begin) -> Begin:
    """Begin a life on Postgres + RabbitMQ, both shared: not to be stopped."""
    return lambda **settings: begin(postgres_url, rabbitmq_url, **settings)


@pytest.fixture(params=["sqlite", pytest.param("services", marks=[pytest.mark.postgres, pytest.mark.rabbitmq])])
def anywhere(request: pytest.FixtureRequest) -> Begin:
    """Begin a life on one SQLite file, and on Postgres + RabbitMQ."""
    if request.param == "services":
        served: Begin = request.getfixturevalue("served")
        return served
    url = request.getfixturevalue("sqlite_url")
    begin: Begin = request.getfixturevalue("begin")
    return lambda **settings: begin(url, **settings)

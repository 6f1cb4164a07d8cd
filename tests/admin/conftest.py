"""A command line on a fresh store, run in this process with streams of its own, and an app that fails on demand."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dramatiq
import pytest

from lattice_tasks import Lattice, Park
from lattice_tasks.admin import main
from lattice_tasks.admin.desk import Desk
from lattice_tasks.errors import NotFinished


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Ran:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its JSON."""
        return json.loads(self.out)


class CommandLine:
    """`lattice-tasks` on one store. `typed`: somebody sits at a terminal and types that."""

    def __init__(self, store_url: str) -> None:
        self.store_url = store_url

    def __call__(self, *arguments: str, typed: str | None = None) -> Ran:
        return self.bare("--store-url", self.store_url, *arguments, typed=typed)

    def json(self, *arguments: str) -> Any:
        """The data of a command that has to succeed."""
        ran = self(*arguments, "-o", "json")
        assert ran.code == 0, ran.err
        return ran.data

    def bare(self, *arguments: str, typed: str | None = None) -> Ran:
        """Without naming the store."""
        stream = io.StringIO if typed is None else Terminal
        out, err, stdin = stream(), stream(), stream(typed or "")
        code = main(arguments, lambda: Desk(Lattice, out, err, stdin))
        return Ran(code, out.getvalue(), err.getvalue())


class App:
    """Tasks `add`, `fail` and `refuse` in the queue `sums`; `fail` fails while `is_broken`."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self.is_broken = True
        self.lattice, (self.add, self.fail, self.refuse) = self._make()

    def work(self) -> None:
        """Run everything there is, to its end."""
        with self.working() as lattice:
            lattice.broker.join("sums", timeout=20_000)

    def work_off(self, *ids: str) -> None:
        """Run until these have ended, whatever else there is."""
        with self.working() as lattice:
            for task_id in ids:
                with suppress(NotFinished):
                    lattice.job(task_id).result(timeout=20)

    @contextmanager
    def working(self) -> Iterator[Lattice]:
        """A worker during the block, with a `Lattice` of its own as in a process of its own."""
        lattice, _ = self._make()
        worker = dramatiq.Worker(lattice.broker, worker_timeout=20, worker_threads=1)
        worker.start()
        try:
            yield lattice
        finally:
            # A thread of Dramatiq's that is stopped before it has begun never ends.
            while not all(thread.running for thread in worker.workers):
                threading.Event().wait(0.001)
            worker.stop()
            lattice.close()

    def _make(self) -> tuple[Lattice, list[Any]]:
        lattice = Lattice(store_url=self._store_url, set_default=False, log_level="critical")
        declare = lattice.task(queue="sums", max_retries=0)
        return lattice, [declare(function) for function in (self._add(), self._fail(), self._refuse())]

    def park(self, count: int = 1, **kwargs: Any) -> list[str]:
        """So many dead letters; their tasks' ids."""
        ids = [self.fail.submit(number, **kwargs).id for number in range(count)]
        self.work()
        return ids

    def group(self) -> str:
        """The fingerprint of the group with most letters."""
        return self.lattice.letter_groups.list()[0].fingerprint

    def _add(self) -> Callable[..., int]:
        def add(left: int, right: int = 1) -> int:
            return left + right

        return add

    def _fail(self) -> Callable[..., str]:
        def fail(number: int, text: str = "it broke") -> str:
            if self.is_broken:
                raise ValueError(text)
            return f"mended {number}"

        return fail

    def _refuse(self) -> Callable[[], None]:
        def refuse() -> None:
            raise Park("not today")

        return refuse


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No variable and no file of the developer's own."""
    for name in ("STORE_URL", "BROKER_URL", "NAMESPACE", "CONFIG", "OUTPUT", "COLOR", "QUIET", "VERBOSE"):
        monkeypatch.delenv(f"LATTICE_{name}", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(store_url: str) -> CommandLine:
    return CommandLine(store_url)


@pytest.fixture
def lite(sqlite_url: str) -> CommandLine:
    """For what does not depend on the engine."""
    return CommandLine(sqlite_url)


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    app = App(store_url)
    yield app
    app.lattice.close()

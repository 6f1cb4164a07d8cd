"""A life under test: its store, its history, its workers, and what is done to them."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import dramatiq

from lattice_tasks import Lattice
from lattice_tasks.errors import StoreError, StoreUnavailable
from tests.history import History, HistoryChecker
from tests.paths.processes import PATIENCE_S, ROOT, Process, is_alive
from tests.witness import Row, Witnessed
from tests.working import until

APP = "tests.paths.apps.lives"


def settled(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    return until(condition, what, patience_s)


class Life:
    """One run: a store, perhaps a broker, the history beside them, and the processes that use them.

    Args:
        folder: of the history, the logs and the gates.
        settings: of every process, by name; `lives_…` are the app's own.
    """

    def __init__(self, folder: Path, store_url: str, broker_url: str = "", **settings: Any) -> None:
        self.folder = folder
        self.store_url = store_url
        self.broker_url = broker_url
        self.history = History(folder / "history.jsonl")
        self.store = Witnessed(store_url)
        given = {"store_url": store_url, "broker_url": broker_url, "lease_ms": 2_000, **settings}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LATTICE_")},
            **{
                name.upper() if name.startswith("lives_") else f"LATTICE_{name.upper()}": str(value)
                for name, value in given.items()
            },
            "LIVES_HISTORY": str(self.history.path),
            "PYTHONPATH": str(ROOT),
        }
        ours = {name: value for name, value in settings.items() if not name.startswith("lives_")}
        self.lattice = Lattice(store_url, broker_url, set_default=False, log_level="critical", **ours)
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        self.lattice.migrate()
        self.store.install()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        self.lattice.close()

    # --- submitting and looking -------------------------------------------------------------------------------------

    def submit(self, actor: str, name: str, *args: Any, queue: str = "lives") -> Any:
        """Submit one task and write down what was asked and answered."""
        return self.history.submitting(name, lambda: self.lattice.submit(queue, actor, (name, *args)))

    def send(self, actor: str, name: str, *args: Any, **options: Any) -> None:
        """The same as Dramatiq's own message, with options."""
        message = dramatiq.Message("lives", actor, (name, *args), {}, options)
        self.history.note("invoke", name=name)
        self.lattice.broker.enqueue(message)
        self.history.note("accepted", name=name, id=message.message_id)

    def submit_together(self, calls: Sequence[tuple[str, ...]], actor: str = "work") -> None:
        """Several in one transaction: (name, further arguments …)."""
        for call in calls:
            self.history.note("invoke", name=call[0])
        jobs = self.lattice.submit_calls("lives", actor, [(call, {}) for call in calls], {})
        for call, job in zip(calls, jobs, strict=True):
            self.history.note("accepted", name=call[0], id=job.id)

    def gate(self, name: str = "gate") -> str:
        """The path of a gate that is still shut."""
        return str(self.folder / name)

    def open(self, gate: str) -> None:
        Path(gate).touch()

    def queue_id(self, queue: str = "lives") -> int:
        return self.lattice.queues.ensure(queue).id

    def started(self, name: str, count: int = 1, patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """The starts of a task, once there are so many."""
        return settled(
            lambda: len(found := self.history.of("start", name=name)) >= count and found,
            f"{count} starts of {name}",
            patience_s,
        )

    def event(self, name: str, count: int = 1, patience_s: float = PATIENCE_S, **facts: Any) -> list[dict[str, Any]]:
        """The events of a name, once there are so many."""
        return settled(
            lambda: len(found := self.history.events(name, **facts)) >= count and found, f"{count} {name}", patience_s
        )

    def finished(
        self,
        patience_s: float = PATIENCE_S,
        queues: Sequence[str] = ("lives",),
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until nothing is open any more; `tend` is called meanwhile."""
        depths: list[Any] = []

        def is_over() -> bool:
            tend()
            try:
                depths[:] = [self.lattice.queues.depth(queue) for queue in queues]
            except StoreUnavailable:
                return False
            return not any(one.waiting + one.scheduled + one.running for one in depths)

        try:
            settled(is_over, "everything finished", patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {depths}; {self.logs()}") from None

    def checked(self, budget: int | None = None, is_over: bool = True) -> dict[str, Row]:
        """The final rows by name, when every invariant holds."""
        return HistoryChecker(self.history, self.store, budget, is_over).check()

    def logs(self, last: int = 1_500) -> str:
        """The ends of what the processes printed."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-last:]}" for path in sorted(self.folder.glob("*.log")))

    def submitting(self, every_s: float = 0.01, **options: Any) -> "Submitting":
        """A thread that goes on submitting small tasks."""
        return Submitting(self, every_s, **options)

    # --- processes --------------------------------------------------------------------------------------------------

    def worker(
        self, threads: int = 4, shutdown_ms: int = 5_000, is_awaited: bool = True, app: str = APP, **environment: str
    ) -> Process:
        """One plain worker process, ready for work."""
        command = [sys.executable, "-m", "tests.paths.apps.serve", app, str(threads), str(shutdown_ms)]
        process = self.run(command, **environment)
        if is_awaited:
            self.event("worker.started", pid=process.pid)
        return process

    def run(self, command: Sequence[str], **environment: str) -> Process:
        """Any process with the settings of this life."""
        log = self.folder / f"{len(self._processes)}.log"
        process = Process(command, self.environment | environment, log)
        self._processes.append(process)
        return process

    def kill(self, pid: int) -> float:
        """kill -9, written down; returns when."""
        self.history.note("fault", kind="kill -9", victim=pid)
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def freeze(self, process: Process) -> None:
        """Stop every thread of it, written down; not while it holds the only writer's place of a SQLite file, which would stop all."""
        self.history.note("fault", kind="SIGSTOP", victim=process.pid)
        process.freeze()
        while not self.store.is_writable():
            process.thaw()
            threading.Event().wait(0.02)
            process.freeze()

    def fault(self, kind: str, **facts: Any) -> None:
        """Write down a fault, so that the checker allows for it."""
        self.history.note("fault", kind=kind, **facts)

    def workers(self) -> list[int]:
        """The pids of all processes that have registered as workers and still live."""
        return [pid for pid in {one["pid"] for one in self.history.events("worker.started")} if is_alive(pid)]


class Submitting:
    """Submits one small task after another from a thread of its own, whatever happens meanwhile.

    Attributes:
        answers: (when, how long it took in seconds, whether it was accepted) of every submit.
        errors: what those raised that were not.
    """

    def __init__(self, life: Life, every_s: float, ms: int = 5, name: str = "stream") -> None:
        self.answers: list[tuple[float, float, bool]] = []
        self.errors: list[str] = []
        self._life = life
        self._every_s = every_s
        self._ms = ms
        self._name = name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def more(self, count: int = 30, patience_s: float = PATIENCE_S) -> None:
        """Wait until so many more were accepted."""
        before = self.accepted
        settled(lambda: self.accepted >= before + count, f"{count} more submits", patience_s)

    @property
    def accepted(self) -> int:
        return sum(accepted for _, _, accepted in self.answers)

    def slowest_s(self) -> float:
        """The longest that a submit took."""
        return max(took_s for _, took_s, _ in self.answers)

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            began = time.monotonic()
            try:
                self._life.submit("work", f"{self._name}{number}", self._ms)
                accepted = True
            except StoreError as error:
                accepted = False
                self.errors.append(str(error))
            self.answers.append((began, time.monotonic() - began, accepted))
            self._over.wait(self._every_s)


class Fleet:
    """Plain worker processes of which each that dies is replaced, whenever the test looks after them."""

    def __init__(self, life: Life, processes: int, threads: int = 4) -> None:
        self._life = life
        self._threads = threads
        self._members = [life.worker(threads) for _ in range(processes)]
        self.deaths = 0

    def tend(self) -> None:
        """Replace who has died."""
        for place, member in enumerate(self._members):
            if not member.is_alive:
                self.deaths += 1
                self._members[place] = self._life.worker(self._threads, is_awaited=False)


class Supervised:
    """`lattice-tasks worker`: our own supervisor over several worker processes."""

    def __init__(self, life: Life, processes: int, threads: int, shutdown_s: float = 5.0) -> None:
        self._life = life
        command = [sys.executable, "-m", "lattice_tasks", "worker", APP, "--processes", str(processes)]
        self.process = life.run([*command, "--threads", str(threads), "--shutdown-timeout", f"{shutdown_s}s"])
        life.event("worker.started", processes)

    def busy(self, chance: random.Random) -> int | None:
        """The pid of a worker that runs a task just now; None: there is none."""
        running = [pid for pid in self._life.history.in_flight() if is_alive(pid)]
        return chance.choice(sorted(running)) if running else None

    def replaced(self) -> int:
        """How often it has replaced a worker that died."""
        return self.process.text().count("supervisor.child_died")

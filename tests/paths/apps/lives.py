"""Tasks that write down what happens to them; settings come from `LATTICE_*`, the file from `LIVES_HISTORY`."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq

from lattice_tasks import Lattice, Park, current
from tests.history import History
from tests.paths.apps.deaf import drop_wake_ups

MOST_RETRIES = int(os.environ.get("LIVES_MAX_RETRIES", "50"))
_COUNTED_ONLY = {"task.submitted", "task.claimed", "task.succeeded", "wakeup.sent"}

history = History(Path(os.environ["LIVES_HISTORY"]))
lattice = Lattice()
if os.environ.get("LIVES_DROP"):
    drop_wake_ups(lattice.broker._parts.notifier)
options: dict[str, Any] = {"queue": "lives", "max_retries": MOST_RETRIES, "min_backoff": 10, "max_backoff": 50}


def tell(name: str, fields: Any) -> None:
    if name not in _COUNTED_ONLY:
        history.note("event", name=name, fields=dict(fields))


lattice.telemetry.subscribe(tell)


@contextmanager
def attempt(name: str) -> Iterator[str]:
    """One execution, from its start to its end; its token is the result that fencing must keep apart."""
    token = uuid4().hex
    me = {"name": name, "id": current.invocation.id, "attempt": current.invocation.attempt}
    me |= {"thread": threading.get_ident()}
    history.note("start", **me)
    try:
        yield token
    except BaseException as error:
        history.note("end", how="error", error=type(error).__name__, **me)
        raise
    history.note("end", how="ok", token=token, **me)


def wait_for(gate: str) -> None:
    """Until the file is there; in steps, so that an interrupt gets through. It may be named by a variable."""
    gate = os.environ.get(gate, gate)
    while not os.path.exists(gate):
        time.sleep(0.005)


@lattice.task(**options)
def work(name: str, ms: int = 0) -> str:
    with attempt(name) as token:
        time.sleep(ms / 1_000)
    return token


@lattice.task(**options)
def hold(name: str, gate: str) -> str:
    with attempt(name) as token:
        wait_for(gate)
    return token


@lattice.task(**options, notify_shutdown=True)
def interruptible(name: str, gate: str) -> str:
    with attempt(name) as token:
        wait_for(gate)
    return token


@lattice.task(**options)
def fail(name: str, gate: str | None = None) -> None:
    with attempt(name):
        if gate is not None:
            wait_for(gate)
        raise ValueError(f"{name} fails, as it shall")


@lattice.task(**options)
def reject(name: str, gate: str) -> None:
    with attempt(name):
        wait_for(gate)
        raise Park(f"{name} shall not be tried again")


@lattice.task(**options)
def flaky(name: str, failures: int, gate: str | None = None) -> str:
    with attempt(name) as token:
        if gate is not None:
            wait_for(gate)
        if current.invocation.attempt <= failures:
            raise ValueError(f"{name} fails {failures} times, as it shall")
    return token


@lattice.task(**options)
def die(name: str, how: str = "exit", ms: int = 0) -> None:
    """Take the whole process along."""
    with attempt(name):
        time.sleep(ms / 1_000)
        history.note("fault", kind=f"task {how}", victim=os.getpid())
        if how == "exit":
            os._exit(13)
        os.kill(os.getpid(), signal.SIGKILL)
        wait_for("/nowhere")


@lattice.task(**options)
def moody(name: str) -> None:
    """Die at every odd attempt, fail at every even one."""
    if current.invocation.attempt % 2:
        die(name)
    else:
        fail(name)


@lattice.task(**options)
def hog(name: str, gate: str) -> str:
    """Hold a connection of the pool all the time."""
    with attempt(name) as token, lattice.engine.session():
        wait_for(gate)
    return token


@lattice.task(**options)
def spin(name: str, ms: int) -> str:
    """Pure CPU, without ever giving way by itself."""
    with attempt(name) as token:
        end_at = time.monotonic() + ms / 1_000
        while time.monotonic() < end_at:
            sum(range(1_000))
    return token


@lattice.task(queue="limited", max_retries=None, min_backoff=50, max_backoff=100)
def alone(name: str, gate: str) -> str:
    """One at a time, by Dramatiq's own limiter over the store."""
    limiter = dramatiq.rate_limits.ConcurrentRateLimiter(
        lattice.broker.rate_limiter_backend, "lives-alone", limit=1, ttl=2_000
    )
    with attempt(name) as token, limiter.acquire():
        wait_for(gate)
    return token

"""One worker process: load the app, run Dramatiq's own worker over its broker, stop in good order.

What the stock `dramatiq` command does in each of its processes, with our way to find the broker, and our exit codes.
"""

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import dramatiq
from dramatiq import broker as dramatiq_broker
from dramatiq.errors import BrokerConnectionError

from lattice_tasks.broker.broker import LatticeBroker
from lattice_tasks.broker.loading import load_app
from lattice_tasks.errors import AppImportFailed, StoreError, StoreUnavailable

__all__ = ["broker_of", "run"]

_KILLED = 1


def broker_of(app: str) -> LatticeBroker:
    """Import an app and find its broker: the attribute that was named (a `Lattice`, a broker, or a function that makes
    one), else the one that became Dramatiq's default.

    Raises:
        AppImportFailed: it cannot be imported, or has no `Lattice`.
    """
    _module, named = load_app(app)
    found = getattr(named, "broker", named)
    if found is not None and not isinstance(found, dramatiq.Broker) and callable(found):
        made = found()
        found = getattr(made, "broker", made)
    if found is None:
        found = dramatiq_broker.global_broker
    if not isinstance(found, LatticeBroker):
        raise AppImportFailed(
            f"app {app!r} has no Lattice: make one in the module (`lattice = Lattice()`) or name it (`{app}:lattice`)"
        )
    return found


def run(
    app: str,
    queues: Sequence[str] | None,
    threads: int,
    shutdown_timeout_ms: int,
    *,
    buries: Sequence[int] = (),
    on_incarnation: Callable[[int], None] = lambda _worker_id: None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Work until SIGTERM or SIGINT, then stop within the time-out; a second signal ends the process at once.

    Args:
        queues: only these; None: all that the app declares.
        buries: worker ids of processes that are known to have ended; their leases are freed at once.
        on_incarnation: told each worker id that this process takes.
        on_ready: called once the worker runs.

    Returns:
        The exit code: 0.

    Raises:
        AppImportFailed: the app cannot be imported.
        StoreError: the store could not be reached at the start, or cannot be used.
    """
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(_KILLED)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    random.seed()
    broker = broker_of(app)
    broker.emit_after("process_boot")
    broker.on_incarnation = on_incarnation
    worker = dramatiq.Worker(broker, queues=set(queues) if queues else None, worker_threads=threads)
    try:
        worker.start()
    except BrokerConnectionError as error:
        if isinstance(error.__cause__, StoreError):  # which knows whether trying again helps
            raise error.__cause__ from None
        raise StoreUnavailable(str(error)) from error
    broker.bury(buries)
    on_ready()
    while not stopping.is_set():
        stopping.wait(1.0)
    worker.stop(timeout=shutdown_timeout_ms)
    broker.close()
    return 0

"""One worker process, and nothing else: `python -m tests.paths.apps.serve MODULE THREADS SHUTDOWN_MS`."""

import importlib
import signal
import sys
import threading

import dramatiq


def main(module: str, threads: str, shutdown_ms: str) -> None:
    app = importlib.import_module(module)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    worker = dramatiq.Worker(app.lattice.broker, worker_threads=int(threads), worker_timeout=100)
    worker.start()
    told.wait()
    worker.stop(timeout=int(shutdown_ms))
    app.lattice.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

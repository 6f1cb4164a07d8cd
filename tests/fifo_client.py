"""Clients of one FIFO queue, each in a process of its own that is made to be killed; what they see goes to a `History`.

They are forked by a server that has everything imported and nothing open, so that a new one is there within milliseconds.
"""

import multiprocessing
import os
import random
import signal
import threading
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from lattice_tasks.fifo import LatticeQueue
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine, Statement
from tests.fifos import NAME
from tests.history import History

#: Where `work_through` puts down what it has done, in the transaction that took it from the queue.
DONE = Statement("insert into fifo_done (entry_id, value) values (%s, %s)")
#: At this value `work_through` stops and waits to be killed, the first time.
FATAL = 500


def start(target: Any, *arguments: Any) -> BaseProcess:
    """Run one of the functions below in a new process."""
    context = multiprocessing.get_context("forkserver")
    assert isinstance(context, ForkServerContext)
    context.set_forkserver_preload(["tests.fifo_client"])
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def enqueue_and_dequeue(store_url: str, file: Path) -> None:
    """Both, at random, each noted before and after; until SIGTERM."""
    history, chance, told = History(file), random.Random(os.getpid()), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    queue = LatticeQueue[list[int]](Engine(Settings(store_url=store_url)), NAME)
    number = 0
    while not told.is_set():
        if chance.random() < 0.55:
            number += 1
            history.note("enqueuing", value=[os.getpid(), number])
            entry_id = queue.enqueue([os.getpid(), number])
            history.note("enqueued", entry_id=entry_id, value=[os.getpid(), number])
        else:
            history.note("dequeuing")
            entry = queue.try_dequeue()
            history.note("dequeued", entry_id=entry and entry.entry_id, value=entry and entry.value)


def work_through(store_url: str, file: Path) -> None:
    """Take entries and do them in one transaction each, failing now and then; until the queue is empty."""
    history, chance = History(file), random.Random(os.getpid())
    engine, is_done = Engine(Settings(store_url=store_url)), False
    while not is_done:
        with suppress(ArithmeticError), engine.session() as session, session.transaction():
            entry = LatticeQueue[int](session, NAME).try_dequeue()
            if entry is None:
                is_done = True
                continue
            if entry.value == FATAL and not history.of("holding"):
                history.note("holding", entry_id=entry.entry_id)
                signal.pause()
            session.execute(DONE, (entry.entry_id, entry.value))
            if chance.random() < 0.1:
                history.note("failed", value=entry.value)
                raise ArithmeticError
    history.note("finished")

"""Use a lattice, fork, and close it in the parent while the child goes on: `python -m … idle|busy`.

`busy`: the parent forks in the middle of using the store, which a SQLite file does not bear; the child has to be told.
"""

import os
import sys
from pathlib import Path

from lattice_tasks import Lattice
from lattice_tasks.errors import InvalidOperation
from tests.history import History

history = History(Path(os.environ["LIVES_HISTORY"]))
lattice = Lattice(set_default=False)


def submit(name: str) -> None:
    history.submitting(name, lambda: lattice.submit("lives", "work", (name,)))


def child(started: int, closed: int) -> None:
    with lattice.engine.session():
        submit("child before")
        os.write(started, b"x")
        os.read(closed, 1)
        submit("child after")


def idle() -> int:
    submit("parent")
    (started, told_started), (closed, told_closed) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        child(told_started, closed)
        os._exit(0)
    os.read(started, 1)
    lattice.close()
    os.write(told_closed, b"x")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def busy() -> int:
    submit("parent")
    with lattice.engine.session():
        pid = os.fork()
        if pid == 0:
            try:
                submit("child")
            except InvalidOperation as error:
                os._exit(0 if "spawn" in str(error) else 2)
            os._exit(1)
    submit("parent after")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(idle() if sys.argv[1] == "idle" else busy())

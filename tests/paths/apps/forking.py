"""Use a lattice, fork, and go on using it in the parent and in every child: `python -m … CHILDREN EACH [busy]`.

`busy`: other threads of the parent submit all the time, so that a fork finds locks taken.
"""

import os
import sys
import threading
import traceback
from pathlib import Path

from lattice_tasks import Lattice
from tests.history import History

PATIENCE_S = 20

history = History(Path(os.environ["LIVES_HISTORY"]))
lattice = Lattice(set_default=False)
lattice.telemetry.subscribe(lambda name, fields: history.note("event", name=name, fields=dict(fields)))


def submit(who: str, count: int, queue: str = "lives") -> None:
    for number in range(count):
        name = f"{who}-{number}"
        history.submitting(name, lambda name=name: lattice.submit(queue, "work", (name,)))


def child(number: int, each: int) -> None:
    """Never returns; half of the children leave in good order, half just end."""
    code = 1
    try:
        threading.Timer(PATIENCE_S, os._exit, (99,)).start()
        submit(f"child{number}", each)
        if number % 2:
            lattice.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(children: int, each: int, is_busy: bool) -> int:
    over = threading.Event()

    def keep_submitting(who: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            submit(f"{who}-{number}", 1, f"{who}-{number}")

    submit("first", 1)
    threads = [threading.Thread(target=keep_submitting, args=(f"thread{n}",)) for n in range(4 if is_busy else 0)]
    for thread in threads:
        thread.start()
    pids = []
    for number in range(children):
        pid = os.fork()
        if pid == 0:
            child(number, each)
        pids.append(pid)
    submit("parent", each)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    over.set()
    for thread in threads:
        thread.join()
    submit("last", 1)
    lattice.close()
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), "busy" in sys.argv))

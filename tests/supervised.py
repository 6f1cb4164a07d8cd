"""A supervisor over children that do what a file says; `test_supervisor.py` runs it as a process of its own.

python -m tests.supervised host FOLDER PROCESSES KILL_AFTER_S
python -m tests.supervised child FOLDER --report-fd N --parent PID
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from lattice_tasks.broker.supervisor import Supervisor
from lattice_tasks.errors import LatticeError
from lattice_tasks.telemetry import Telemetry, make_log


def host(folder: Path, processes: int, kill_after_s: float) -> int:
    """Print every event as a JSON line; errors as the command line would."""
    telemetry = Telemetry(make_log("critical"))
    telemetry.subscribe(lambda name, fields: print(json.dumps({"event": name, **fields}), flush=True))
    command = [sys.executable, "-m", "tests.supervised", "child", str(folder)]
    try:
        return Supervisor(command, processes, telemetry, kill_after_s=kill_after_s).run()
    except LatticeError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def child(folder: Path, report_fd: int) -> int:
    """`mode` holds the way of this child: good, stubborn, broken, offline or dying."""
    told = threading.Event()
    mode = (folder / "mode").read_text()
    if mode in ("broken", "offline"):
        code = {"broken": 78, "offline": 69}[mode]
        os.write(report_fd, f"failed {code} it is {mode}\n".encode())
        return code
    stubborn = mode == "stubborn"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: told.set())
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    (folder / str(os.getpid())).touch()
    os.write(report_fd, b"ready\n")
    if mode == "dying":
        return 5
    told.wait()
    return 0


if __name__ == "__main__":
    role, where, *rest = sys.argv[1:]
    if role == "host":
        sys.exit(host(Path(where), int(rest[0]), float(rest[1])))
    sys.exit(child(Path(where), int(rest[rest.index("--report-fd") + 1])))

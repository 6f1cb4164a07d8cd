"""The environments, producers and workers of the peers, and what they cost: processor time and memory."""

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.peers import Peer

CHECKOUT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PRODUCER_TIMEOUT_S = 900
STOP_S = 10


class Failed(Exception):
    """A producer or a worker of a peer did not do its work; the text ends with what it said."""


@dataclass(frozen=True)
class Ground:
    """Where a run takes place: its folder, the servers, and the folders of the two environments' programs."""

    folder: Path
    postgres_url: str
    rabbitmq_url: str
    peers_bin: Path
    our_bin: Path = Path(sys.executable).parent

    def bin_of(self, peer: Peer) -> Path:
        return self.our_bin if peer.is_ours else self.peers_bin

    def environment(self, peer: Peer, role: str) -> dict[str, str]:
        """The variables that the peers' modules read."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "BENCH_"))}
        return ours | {
            "BENCH_FOLDER": str(self.folder),
            "BENCH_POSTGRES_URL": self.postgres_url,
            "BENCH_RABBITMQ_URL": self.rabbitmq_url,
            "BENCH_ROLE": role,
            "PYTHONPATH": str(CHECKOUT),
            **peer.settings,
        }


def peers_environment(folder: Path) -> Path:
    """The folder of the programs of the peers' own virtual environment, which is made when it is missing or outdated."""
    made_from = folder / "requirements.txt"
    if not made_from.exists() or made_from.read_text() != REQUIREMENTS.read_text():
        venv.create(folder, with_pip=True, clear=True)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check")
        subprocess.run([*pip, "--requirement", REQUIREMENTS], check=True)
        made_from.write_text(REQUIREMENTS.read_text())
    return folder / "bin"


def produce(ground: Ground, peer: Peer, verb: str, *numbers: float) -> Any:
    """Run `benchmarks.producer` for the peer and return what it printed.

    Raises:
        Failed: it ended with an error.
    """
    command = [ground.bin_of(peer) / "python", "-m", "benchmarks.producer", peer.module, verb, *map(str, numbers)]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=ground.environment(peer, "producer"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PRODUCER_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{peer.module} {verb}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Workers:
    """The worker processes of a peer, from `with` to its end."""

    def __init__(self, ground: Ground, peer: Peer) -> None:
        self._ground, self._peer = ground, peer
        self._log = ground.folder / f"{peer.module}.log"

    def __enter__(self) -> Self:
        program, *arguments = self._peer.worker.split()
        command = [str(self._ground.bin_of(self._peer) / program), *arguments]
        environment = self._ground.environment(self._peer, "worker")
        with open(self._log, "ab") as log:
            self._roots = [
                psutil.Popen(
                    [part.format(node=node) for part in command],
                    cwd=CHECKOUT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for node in range(self._peer.nodes)
            ]
        return self

    def __exit__(self, *_: object) -> None:
        family = list(self._family())
        for root in self._roots:
            with suppress(psutil.NoSuchProcess):
                root.terminate()
        _, alive = psutil.wait_procs(family, timeout=STOP_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive)

    def require_alive(self) -> None:
        """
        Raises:
            Failed: one of the commands has ended.
        """
        if any(root.poll() is not None for root in self._roots):
            raise Failed(f"a worker of {self._peer.module} died: {self._log.read_text(errors='replace')[-2000:]}")

    def cpu_s(self) -> float:
        """Processor time that these processes and their children have used so far."""
        return sum(sum(times[:4]) for times in self._each("cpu_times"))

    def pss_mib(self) -> float:
        """Memory, shared pages divided among those who share them."""
        return sum(memory.pss for memory in self._each("memory_full_info")) / 2**20

    def _each(self, question: str) -> Iterator[Any]:
        for process in self._family():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                yield getattr(process, question)()

    def _family(self) -> Iterator[psutil.Process]:
        for root in self._roots:
            with suppress(psutil.NoSuchProcess):
                yield from (root, *root.children(recursive=True))


def wait_until(condition: Any, timeout_s: float, workers: Workers, what: str) -> None:
    """Poll; gentle enough that on two cores it costs the measured processes nothing to speak of.

    Raises:
        Failed: the workers died, or it took too long.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        workers.require_alive()
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)

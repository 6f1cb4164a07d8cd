"""Private PostgreSQL and RabbitMQ servers: start, stop, kill, and start again with the same data on the same port.

Each listens on loopback only, lives in a folder of its own and is ended by its own pid, never by name. Durability is
left at its defaults. Who shares a server with whom is the business of `services`.
"""

import glob
import hashlib
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg

CONF = Path(__file__).resolve().parents[1] / "conf"
START_SECONDS = 90
RETRY_SECONDS = 5
STOP_SECONDS = 30


class Unavailable(Exception):
    """No server can be had here; the text says what to do."""


class Server:
    """One private server process.

    `start` after `stop` or `kill` comes back on the same port with the same data, also from another object or process
    over the same folder.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    programs: ClassVar[Sequence[str]]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # On the command line of the process: tells our server from a stranger that was given the pid of a dead one.
        self.mark = "lattice-" + hashlib.sha1(str(folder).encode()).hexdigest()[:10]
        self._process: subprocess.Popen[bytes] | None = None
        self._state = folder / "server.json"
        self._port: int | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Kept for the life of the object once it is known."""
        if self._port is None:
            last = self._read_state().get("port", 0)
            self._port = last if self.pid is not None or _is_free(last) else free_port()
        return self._port

    @property
    def pid(self) -> int | None:
        """None when the server does not run."""
        pid = self._read_state().get("pid")
        return pid if pid is not None and self._lives(pid) else None

    def start(self) -> None:
        """Returns once the server answers; does nothing when it already runs.

        Raises:
            Unavailable: it did not come up; the text ends with its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + START_SECONDS
        # Again when it ends at once: the children of a killed server may hold its port and memory for a moment.
        retry_until = time.monotonic() + RETRY_SECONDS
        while not self._comes_up(deadline):
            if time.monotonic() > retry_until:
                self.kill()
                tail = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise Unavailable(f"the private {self.name} in {self.folder} did not start:\n{tail}")
            time.sleep(0.25)

    def stop(self) -> None:
        """End it in good order, so that nothing it accepted is lost."""
        self._end(self.stop_signal)
        self._clear()

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Lay out the folder before the first start."""

    def _launch(self, log: int) -> "subprocess.Popen[bytes]":
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _clear(self) -> None:
        """Take down what the server needed beside itself."""

    def _comes_up(self, deadline: float) -> bool:
        if self.pid is None:
            find_program(self)
            self._prepare()
            with open(self.folder / "log", "wb") as log:
                self._process = self._launch(log.fileno())
            self._write_state(pid=self._process.pid, port=self.port)
        while self.pid is not None and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(0.02)
        return False

    def _end(self, number: signal.Signals) -> None:
        pid = self.pid
        patience = time.monotonic() + STOP_SECONDS
        while pid is not None and self._lives(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            while self._lives(pid) and time.monotonic() < patience:
                time.sleep(0.02)
            number = signal.SIGKILL

    def _lives(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is None
        return self.mark in _command_of(pid)

    def _read_state(self) -> dict[str, int]:
        try:
            return json.loads(self._state.read_text())
        except FileNotFoundError:
            return {}

    def _write_state(self, **values: int) -> None:
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(self._read_state() | values))
        new.replace(self._state)


class Postgres(Server):
    """A PostgreSQL with the settings of conf/postgresql.conf, and `settings` over them.

    Its default order of text is a language's, not that of the bytes, where the server can do that: so a missing
    COLLATE "C" shows.
    """

    name = "PostgreSQL"
    package = "postgresql"
    programs = ("/usr/lib/postgresql/*/bin/postgres", "/usr/pgsql-*/bin/postgres")
    stop_signal = signal.SIGINT  # the fast shutdown: SIGTERM would wait for every client

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self.settings = dict(settings or {})

    @property
    def url(self) -> str:
        return f"postgresql://lattice@127.0.0.1:{self.port}/postgres"

    def _prepare(self) -> None:
        data, new = self.folder / "data", self.folder / "data.new"
        if not data.exists():
            shutil.rmtree(new, ignore_errors=True)
            if user := unprivileged():
                os.chown(self.folder, user["user"], user["group"])
            self._initialise(new)
            new.rename(data)
        (data / "lattice.conf").write_text((CONF / "postgresql.conf").read_text())

    def _initialise(self, data: Path) -> None:
        plain = [self._program("initdb"), "-D", data, "-A", "trust", "-U", "lattice", "-E", "UTF8", "--no-sync"]
        for order in (["--locale=C", "--locale-provider=icu", "--icu-locale=en-US"], ["--locale=C"]):
            made = subprocess.run([*plain, *order], capture_output=True, text=True, cwd="/", **unprivileged())
            if made.returncode == 0:
                with open(data / "postgresql.conf", "a") as conf:
                    conf.write("\ninclude_if_exists 'lattice.conf'\n")
                return
        raise Unavailable(f"initdb failed in {data}:\n{made.stderr}")

    def _launch(self, log: int) -> "subprocess.Popen[bytes]":
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "cluster_name": self.mark,
            **self.settings,
        }
        return subprocess.Popen(
            [self._program("postgres"), "-D", self.folder / "data"] + [f"--{k}={v}" for k, v in settings.items()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            **unprivileged(),  # PostgreSQL refuses to run as root
        )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str) -> Path:
        return find_program(self).with_name(name)


class RabbitMQ(Server):
    """A RabbitMQ node with the settings of conf/rabbitmq.conf and a name server (epmd) of its own."""

    name = "RabbitMQ"
    package = "rabbitmq-server"
    programs = ("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def _prepare(self) -> None:
        (self.folder / "enabled_plugins").write_text("[].\n")
        conf = (CONF / "rabbitmq.conf").read_text()
        (self.folder / "rabbitmq.conf").write_text(f"{conf}\nlisteners.tcp.default = 127.0.0.1:{self.port}\n")
        if not self._has_epmd(self._read_state()):
            self._write_state(distribution_port=free_port(), epmd_port=free_port())
            self._epmd = subprocess.Popen(
                ["epmd", "-address", "127.0.0.1", "-port", self._environment()["ERL_EPMD_PORT"]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            self._write_state(epmd_pid=self._epmd.pid)

    def _launch(self, log: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [find_program(self)],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        state, folder = self._read_state(), str(self.folder)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": folder,  # the cookie
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node instead of its parent, so the pid is the node's
            "RABBITMQ_NODENAME": f"{self.mark}@localhost",
            "RABBITMQ_DIST_PORT": str(state["distribution_port"]),
            "RABBITMQ_MNESIA_BASE": folder + "/mnesia",
            "RABBITMQ_LOG_BASE": folder + "/logs",
            "RABBITMQ_CONFIG_FILE": folder + "/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": folder + "/none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": folder + "/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder + "/enabled_plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} -mark {self.mark}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(state["epmd_port"]),
        }

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"  # the first frame of the handshake
        except OSError:
            return False

    def _clear(self) -> None:
        state = self._read_state()
        if self._has_epmd(state):
            os.kill(state["epmd_pid"], signal.SIGTERM)

    def _has_epmd(self, state: Mapping[str, int]) -> bool:
        command = _command_of(state.get("epmd_pid", 0))
        return "epmd" in command and command.endswith(f"-port {state.get('epmd_port')}")


def find_program(server: type[Server] | Server) -> Path:
    """The newest installed one, installed first with apt where we may.

    Raises:
        Unavailable: it is not there and cannot be installed.
    """
    found, why_not = _installed(server), ""
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        why_not = _install(server.package)
        found = _installed(server)
    if found is None:
        raise Unavailable(" ".join(f"{server.name} is not installed {why_not}".split()))
    return found


def free_port() -> int:
    """From below the range of outgoing connections.

    Up there a client that keeps trying a port nobody listens on can meet itself, and then holds the port against the
    server that comes back.
    """
    return next(port for port in random.sample(range(20_000, 32_000), 12_000) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return port > 0


def _installed(server: type[Server] | Server) -> Path | None:
    found = [path for pattern in server.programs for path in glob.glob(pattern)]
    if found:
        return Path(max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path)]))
    on_path = shutil.which(Path(server.programs[0]).name)
    return Path(on_path) if on_path else None


def _install(package: str) -> str:
    """Install a package without starting the system's own service; returns the complaint, empty when it went well."""
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    try:
        for command in ([*apt, "update"], [*apt, "install", "--no-install-recommends", package]):
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    finally:
        if is_ours:
            policy.unlink()
    return f"(apt: {done.stderr.strip()})" if done.returncode else ""


def unprivileged() -> dict[str, Any]:
    """The arguments of `subprocess` that run a program as postgres (or nobody) in place of root."""
    if os.geteuid() != 0:
        return {}
    users = {user.pw_name: user for user in pwd.getpwall()}
    user = users.get("postgres") or users["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _command_of(pid: int) -> str:
    """The command line of a process; empty when there is none, or only its remains."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
    shown = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()

"""A private PgBouncer in transaction mode before a PostgreSQL of the tests."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.servers import Server, find_program, unprivileged

CONF = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
server_reset_query =
"""


class PgBouncer(Server):
    """As few server connections as it is told, and each statement or transaction on whichever is free."""

    name = "PgBouncer"
    package = "pgbouncer"
    programs = ("/usr/sbin/pgbouncer",)

    def __init__(self, folder: Path, server_url: str, pool_size: int = 2) -> None:
        super().__init__(folder)
        self.server = urlsplit(server_url)
        self.pool_size = pool_size

    @property
    def url(self) -> str:
        """Of the same database as the server's."""
        return self.server._replace(netloc=f"{self.server.username}@127.0.0.1:{self.port}").geturl()

    @property
    def _file(self) -> Path:
        return self.folder / f"{self.mark}.ini"

    def _prepare(self) -> None:
        names: Mapping[str, object] = {
            "host": self.server.hostname,
            "port": self.server.port,
            "user": self.server.username,
            "own_port": self.port,
            "pool_size": self.pool_size,
        }
        self._file.write_text(CONF.format(**names))

    def _launch(self, log: int) -> "subprocess.Popen[bytes]":
        command = [find_program(self), self._file]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, **unprivileged()
        )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2, prepare_threshold=None).close()
        except psycopg.OperationalError:
            return False
        return True

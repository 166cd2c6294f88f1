"""A real PgBouncer of a test's own, in transaction mode, before a PostgreSQL server."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.acceptance.clients import missing
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import PostgresServer

_START_SECONDS = 30
_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server} user=tester
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
"""


@contextmanager
def running_pgbouncer(server: PostgresServer) -> Iterator[int]:
    """Run a pooler until the block ends, and yield its port; without PgBouncer, as in `running_postgres`."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if program is None:
        missing("pgbouncer")
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as made:
        directory, port = Path(made), free_port()
        configuration = directory / "pgbouncer.ini"
        configuration.write_text(_CONFIGURATION.format(server=server.port, port=port))
        if server.user is not None:
            shutil.chown(directory, server.user)
        process = subprocess.Popen(
            (program, configuration),
            user=server.user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(process, port)
            yield port
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert process.poll() is None, "PgBouncer has ended"
            assert time.monotonic() < until, "PgBouncer does not accept connections"
            time.sleep(0.02)
        else:
            return

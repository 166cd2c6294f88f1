"""A real PostgreSQL server for tests and benchmarks, with a new database for each caller."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import psycopg

from bench.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_SECONDS = 60
_HAS_STRATEGY = 15_00_00  # the first version with strategies
_PROGRAMS = "/usr/lib/postgresql/*/bin"  # Debian's; elsewhere they are on PATH


@attrs.frozen
class PostgresServer:
    """A running server.

    Args:
        directory: its data.
        port: on 127.0.0.1.
        programs: the directory of its programs.
        user: of its processes; None: the user of this process.
    """

    directory: Path
    port: int
    programs: Path
    user: str | None

    def create_database(self) -> str:
        """Create an empty database, and return its URL."""
        name = f"test_{uuid4().hex}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            # Copied files take half of the CPU time of copied pages, whose copies are logged.
            strategy = "STRATEGY = FILE_COPY" if connection.info.server_version >= _HAS_STRATEGY else ""
            connection.execute(f'CREATE DATABASE "{name}" {strategy}'.encode())
        return f"postgresql+psycopg://tester@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            f"unix_socket_directories={self.directory}",
            "fsync=off",  # nobody ends the machine, only the process
        )
        options = " ".join(f"-c {setting}" for setting in settings)
        log, timeout = self.directory / "log", str(_START_SECONDS)
        self._control("--wait", "--timeout", timeout, "--options", options, "--log", log, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server.

        Args:
            mode: of pg_ctl: ``immediate`` ends it without a checkpoint, as a crash does.
        """
        self._control("--wait", "--mode", mode, "stop")

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all processes with SIGSTOP until the block ends: connections stay, and nothing answers."""
        processes = self._processes()
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def _processes(self) -> list[int]:
        """Return the first process, which starts the others, and those."""
        first = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=tester dbname={database}"

    def initialize(self) -> None:
        """Make its data directory; nothing is synced, because it does not outlive them."""
        self._run(
            "initdb",
            "-D",
            self.directory / "data",
            "-U",
            "tester",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        )

    def _control(self, *arguments: str | Path) -> None:
        self._run("pg_ctl", "--pgdata", self.directory / "data", *arguments)

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            (self.programs / program, *arguments),
            check=True,
            user=self.user,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None,
            timeout=2 * _START_SECONDS,
        )


@contextmanager
def running_postgres(programs: Path) -> Iterator[PostgresServer]:
    """Run a server until the block ends; ``programs`` is what `find_programs` returns."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))  # short, for its socket, and open to its user
    user = _unprivileged_user()
    if user is not None:
        shutil.chown(directory, user)
    server = PostgresServer(directory, free_port(), programs, user)
    try:
        server.initialize()
        server.start()
        yield server
    finally:
        with suppress(subprocess.CalledProcessError):
            server.stop("immediate")
        shutil.rmtree(directory, ignore_errors=True)


def find_programs() -> Path | None:
    """Return the directory of the newest PostgreSQL's programs; None: it is not installed."""
    debian = sorted(Path("/").glob(_PROGRAMS[1:]), key=lambda path: int(path.parent.name))
    if debian:
        return debian[-1]
    found = shutil.which("initdb")
    return None if found is None else Path(found).parent


def _unprivileged_user() -> str | None:
    """Return a user for the server, which refuses to run as root; None: this process is not root's."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"

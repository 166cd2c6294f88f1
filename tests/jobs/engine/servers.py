"""Engines of the tests' own, which they may kill."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
from contextlib import contextmanager, suppress
from functools import partial
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING

import yaml
from sqlalchemy import make_url

from image_service.jobs.engine.engine_child import find_program, server_command
from tests.acceptance.clients import needs_client, run_client
from tests.ports import free_port

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.postgres import PostgresServer

_HOST = "127.0.0.1"


class EngineServer:
    """A process that can be killed and started again.

    Args:
        command: that starts it.
        port: on which it listens.
        postgres: the server of its database; None: it uses SQLite.
    """

    def __init__(self, command: Sequence[str], port: int, postgres: PostgresServer | None = None) -> None:
        self._command = command
        self.postgres = postgres
        self.address = f"{_HOST}:{port}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running_engine(directory: Path) -> Iterator[EngineServer]:
    """Run an engine on SQLite, as the role's child runs."""
    port = free_port()
    server = EngineServer(server_command(find_program(), port, directory / "temporal.sqlite"), port)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def running_cluster(directory: Path, postgres: PostgresServer) -> Iterator[EngineServer]:
    """Run a server of one node on PostgreSQL, as operators run several."""
    program = needs_client("temporal-server")
    stores = {
        store: _store(postgres.create_database(), f"postgresql/v12/{schema}")
        for store, schema in (("default", "temporal"), ("visibility", "visibility"))
    }
    port = _low_port()
    config = directory / "config.yaml"
    config.write_text(yaml.safe_dump(_configuration(stores, port)))
    server = EngineServer([program, "--config-file", str(config), "--allow-no-auth", "start"], port, postgres)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def tls_before(address: str, context: ssl.SSLContext) -> Iterator[int]:
    """Accept TLS on a port of loopback, and forward its content to a server, until the block ends."""
    host, _, port = address.partition(":")
    ready: Queue[tuple[int, Callable[[], object]]] = Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))
        finally:
            writer.transport.abort()
            server_writer.transport.abort()

    async def listen() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(serve, _HOST, 0, ssl=context) as listener:
            ready.put((listener.sockets[0].getsockname()[1], partial(loop.call_soon_threadsafe, stop.set)))
            await stop.wait()

    thread = Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    number, stop = ready.get()
    try:
        yield number
    finally:
        stop()
        thread.join()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


def _store(url: str, schema: str) -> dict[str, object]:
    """Set up the tables in a database, and return how the server reaches it."""
    database = make_url(url)
    place = ("--endpoint", _HOST, "--port", str(database.port), "--user", database.username or "")
    tool = ("--plugin", "postgres12", *place, "--database", database.database or "")
    run_client("temporal-sql-tool", *tool, "setup-schema", "--version", "0.0")
    run_client("temporal-sql-tool", *tool, "update-schema", "--schema-name", schema)
    sql = {
        "pluginName": "postgres12",
        "databaseName": database.database,
        "connectAddr": f"{_HOST}:{database.port}",
        "connectProtocol": "tcp",
        "user": database.username,
        "password": "",
        "maxConns": 20,
    }
    return {"sql": sql}


def _configuration(stores: dict[str, dict[str, object]], port: int) -> dict[str, object]:
    services = ("frontend", "matching", "history", "worker")
    ports = {service: port if service == "frontend" else _low_port() for service in services}
    return {
        "log": {"stdout": True, "level": "error"},
        "persistence": {
            "defaultStore": "default",
            "visibilityStore": "visibility",
            "numHistoryShards": 4,
            "datastores": stores,
        },
        "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": _HOST}},
        "services": {
            service: {"rpc": {"grpcPort": number, "membershipPort": _low_port(), "bindOnLocalHost": True}}
            for service, number in ports.items()
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {
                "active": {
                    "enabled": True,
                    "initialFailoverVersion": 1,
                    "rpcName": "frontend",
                    "rpcAddress": f"{_HOST}:{port}",
                }
            },
        },
        "publicClient": {"hostPort": f"{_HOST}:{port}"},
    }


def _low_port() -> int:
    """Return a free port below those that the kernel assigns: Temporal's table has a smallint for it."""
    while True:
        port = random.randrange(20000, 32768)  # noqa: S311 - no secret
        with socket.socket() as found, suppress(OSError):
            found.bind((_HOST, port))
            return port

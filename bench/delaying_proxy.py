"""A TCP proxy that adds a round-trip time: ``python -m bench.delaying_proxy PORT HOST:PORT MILLISECONDS``.

It listens on 127.0.0.1. Each direction is delayed by half the time, and each connection once by all of it, as
a handshake is. Bytes that arrive meanwhile are kept, so that latency does not limit throughput by itself.
SIGSTOP makes it hang, SIGKILL resets its connections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.ports import wait_for_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES = 64 * 1024
_PIECES = 1024  # on their way in one direction of a connection


@contextlib.contextmanager
def delaying_proxy(port: int, target: str, milliseconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run the proxy in a process of its own until the block ends.

    Args:
        port: where it listens, on 127.0.0.1.
        target: host and port of the server.
        milliseconds: the round-trip time to add.
    """
    command = [sys.executable, "-m", "bench.delaying_proxy", str(port), target, str(milliseconds)]
    with subprocess.Popen(command) as process:
        try:
            wait_for_port(port, process)
            yield process
        finally:
            process.kill()


async def _serve(port: int, target: str, seconds: float) -> None:
    host, _, target_port = target.rpartition(":")

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        try:
            target_reader, target_writer = await asyncio.open_connection(host, int(target_port))
        except OSError:
            writer.close()
            return
        with contextlib.closing(writer), contextlib.closing(target_writer):
            await _relay_both(reader, target_writer, target_reader, writer, seconds / 2)

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


async def _relay_both(
    client: asyncio.StreamReader,
    to_target: asyncio.StreamWriter,
    target: asyncio.StreamReader,
    to_client: asyncio.StreamWriter,
    seconds: float,
) -> None:
    with contextlib.suppress(BaseExceptionGroup):  # a peer has disconnected
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_relay(client, to_target, seconds))
            directions.create_task(_relay(target, to_client, seconds))


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Copy one direction, each piece `seconds` after it came."""
    clock = asyncio.get_running_loop().time
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)

    async def receive() -> None:
        piece = b"-"
        while piece:
            piece = await reader.read(_PIECE_BYTES)
            await pieces.put((clock() + seconds, piece))

    async def send() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(due - clock())
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    async with asyncio.TaskGroup() as both:
        both.create_task(receive())
        both.create_task(send())


def main() -> None:
    """Run until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m bench.delaying_proxy", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("target")
    parser.add_argument("milliseconds", type=float)
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.target, options.milliseconds / 1000))


if __name__ == "__main__":
    main()

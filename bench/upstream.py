"""A minimal assisted-service for the benchmark: every infra-env is the same.

``python -m bench.upstream PORT VERSION KIBIBYTES``: the port, the version of the base image, and the size of
the Ignition config.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys

_HEAD_BYTES = 64 * 1024


def main() -> None:
    """Serve until a signal."""
    port, version, kibibytes = sys.argv[1:]
    asyncio.run(serve(int(port), version, int(kibibytes) * 1024))


async def serve(port: int, version: str, config_bytes: int) -> None:
    """Listen on loopback, and respond on kept-alive connections."""
    config = _response(make_config(config_bytes))
    infra_env = _response(json.dumps({"openshift_version": version, "cpu_architecture": "x86_64"}).encode())

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(config if b"/downloads/files" in head.partition(b"\r\n")[0] else infra_env)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", port, limit=_HEAD_BYTES)
    await server.serve_forever()


def make_config(size_bytes: int) -> bytes:
    """Return an Ignition config of a size, most of it a file that compresses as poorly as base64."""
    empty = _config(b"")
    content = random.Random(1).randbytes(max(size_bytes - len(empty), 0) // 4 * 3)  # noqa: S311 - no secret
    return _config(content).ljust(size_bytes)


def _config(content: bytes) -> bytes:
    source = f"data:;base64,{base64.b64encode(content).decode()}"
    file = {"path": "/etc/bench", "mode": 420, "contents": {"source": source}}
    return json.dumps({"ignition": {"version": "3.2.0"}, "storage": {"files": [file]}}).encode()


def _response(body: bytes) -> bytes:
    fields = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return fields.encode() + body


if __name__ == "__main__":
    main()

"""A minimal assisted-service for the benchmark: every infra-env is the same.

``python -m bench.upstream PORT VERSION KIBIBYTES FILES``: the port, the version of the base image, and size
and files of the Ignition config.
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
    port, version, kibibytes, files = sys.argv[1:]
    asyncio.run(serve(int(port), version, make_config(int(kibibytes) * 1024, int(files))))


async def serve(port: int, version: str, ignition: bytes) -> None:
    """Listen on loopback, and respond on kept-alive connections."""
    config = _response(ignition)
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


def make_config(size_bytes: int, files: int = 1) -> bytes:
    """Return an Ignition config of a size, most of it files that compress as poorly as base64."""
    room = max(size_bytes - len(_config([b""] * files)), 0) // files
    choose = random.Random(1)  # noqa: S311 - no secret
    return _config([choose.randbytes(room // 4 * 3) for _ in range(files)]).ljust(size_bytes)


def _config(contents: list[bytes]) -> bytes:
    files = [
        {
            "path": f"/etc/bench/{number:05}",
            "mode": 420,
            "contents": {"source": f"data:;base64,{base64.b64encode(content).decode()}"},
        }
        for number, content in enumerate(contents)
    ]
    return json.dumps({"ignition": {"version": "3.2.0"}, "storage": {"files": files}}).encode()


def _response(body: bytes) -> bytes:
    fields = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return fields.encode() + body


if __name__ == "__main__":
    main()

"""An HTTP proxy in a process of its own, by plain TCP or behind TLS.

usage: python connect_proxy.py [CERTIFICATE]     prints its port, then a line for each request that it gets
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 65536


@attrs.define
class ConnectProxy:
    """A running one.

    Args:
        port: on 127.0.0.1.
        lines: of the requests: method, target and value of Proxy-Authorization.
    """

    port: int
    lines: list[str] = attrs.field(factory=list)


@contextmanager
def running_proxy(certificate: Path | None = None) -> Iterator[ConnectProxy]:
    """Run one; with the certificate, behind TLS. Its lines are complete when the block has ended."""
    words = [sys.executable, __file__, *([str(certificate)] if certificate else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        proxy = ConnectProxy(int(process.stdout.readline()))
        try:
            yield proxy
        finally:
            process.terminate()
            proxy.lines += process.stdout.read().splitlines()


def _serve(accepted: socket.socket, context: ssl.SSLContext | None) -> None:
    with suppress(OSError):
        client = context.wrap_socket(accepted, server_side=True) if context else accepted
        with client:
            head = b""
            while b"\r\n\r\n" not in head and (block := client.recv(_BLOCK)):
                head += block
            method, target, _ = head.decode().split(" ", 2)
            fields = [line for line in head.decode().split("\r\n") if line.startswith("Proxy-Authorization")]
            sys.stdout.write(f"{' '.join([method, target, *fields])}\n")
            sys.stdout.flush()
            split = urlsplit(target if "://" in target else f"//{target}")
            with socket.create_connection((split.hostname, split.port or 80)) as server:
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                else:
                    server.sendall(head.replace(target.encode(), split.path.encode() or b"/", 1))
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(_BLOCK):
            target.sendall(block)
    with suppress(OSError):
        socket.socket.shutdown(target, socket.SHUT_RDWR)


def main() -> None:
    """Serve until the process is ended."""
    context = None
    if sys.argv[1:]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=_serve, args=(accepted, context), daemon=True).start()


if __name__ == "__main__":
    main()

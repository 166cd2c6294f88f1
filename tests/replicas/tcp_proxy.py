"""A TCP proxy in this process that cuts the connections to one server, or lets them hang."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BYTES = 64 * 1024
_CONNECT_SECONDS = 10


class TcpProxy:
    """A listener whose connections are passed on to a server.

    Args:
        address: where it listens, on any port.
        server: host and port.

    Attributes:
        most: connections that it has passed on at a time.
    """

    def __init__(self, address: str, server: tuple[str, int]) -> None:
        self.most = 0
        self._server = server
        self._is_cut = False
        self._passing = threading.Event()
        self._passing.set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((address, 0), backlog=128)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Reset all connections, and each new one, until ``mend``."""
        with self._lock:
            self._is_cut = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def hang(self) -> None:
        """Pass on no byte more until ``mend``; connections stay open, and new ones are accepted."""
        self._passing.clear()

    def mend(self) -> None:
        """Pass everything on again."""
        self._is_cut = False
        self._passing.set()

    def close(self) -> None:
        """End all connections and threads."""
        self.cut()
        self._passing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._known(client):
            self._passing.wait()
            with (
                socket.create_connection(self._server, _CONNECT_SECONDS) as server,
                self._known(server),
            ):
                server.settimeout(None)
                back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                back.start()
                self._pass_on(client, server)
                back.join()

    @contextmanager
    def _known(self, connection: socket.socket) -> Iterator[None]:
        with self._lock:
            if self._is_cut:
                raise ConnectionAbortedError
            self._open.add(connection)
            self.most = max(self.most, len(self._open) // 2)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(connection)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(_BLOCK_BYTES):
                self._passing.wait()
                target.sendall(block)
        for connection in (source, target):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def running_proxy(address: str, server: tuple[str, int]) -> Iterator[TcpProxy]:
    """Run a proxy until the block ends."""
    proxy = TcpProxy(address, server)
    try:
        yield proxy
    finally:
        proxy.close()

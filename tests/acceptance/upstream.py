"""assisted-service as an HTTPS server in this process: it answers as a test scripts it, and counts."""

from __future__ import annotations

import http.server
import select
import socket
import ssl
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import attrs

from tests.acceptance.service import INFRA_ENVS
from tests.server.standalone.faults import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.service import Certificate

CONFIG = b'{"ignition": {"version": "3.2.0"}}'
RESET = struct.pack("ii", 1, 0)
"""Of ``SO_LINGER``: a close throws away what has not been sent, and tells the other side so."""


@attrs.frozen
class Reply:
    """The response to one call.

    Args:
        body: content.
        status: of the response.
        headers: additional fields.
        promised: Content-Length; None: that of the body.
        after_seconds: delay before it begins; None: it never begins.
        holds: the connection stays open behind the body without further bytes.
        resets: the connection is reset behind the body.
        has_head: False: the body is sent without a head.
    """

    body: bytes = attrs.field(default=b"", repr=False)
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    promised: int | None = None
    after_seconds: float | None = 0
    holds: bool = False
    resets: bool = False
    has_head: bool = True

    @property
    def is_sound(self) -> bool:
        """Whether another call may follow on the connection."""
        return self.has_head and not self.resets and self.promised in {None, len(self.body)}


Script: TypeAlias = Reply | Callable[[http.server.BaseHTTPRequestHandler], Reply]
"""A reply, or what makes one of a request: its ``path``, with the query, and its ``headers``."""


class Upstream:
    """A running upstream.

    Attributes:
        unknown: the reply about what is not registered.
        most_at_once: the largest number of calls at a time so far; a canceled call is none.

    Args:
        certificate: of its listener.
    """

    def __init__(self, certificate: Certificate) -> None:
        self.unknown: Script = Reply(status=404)
        self.most_at_once = 0
        self.ended = threading.Event()
        self._asking: list[socket.socket] = []
        self._ca: Path = certificate.ca
        self._scripts: dict[str, Script] = {}
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = _Server(self._answer, certificate)

    @property
    def environment(self) -> Mapping[str, str]:
        """The service's environment variables that point to it."""
        return {
            "ASSISTED_SERVICE_SCHEME": "https",
            "ASSISTED_SERVICE_HOST": f"127.0.0.1:{self._server.server_port}",
            "ASSISTED_SERVICE_API_TRUSTED_CA_FILE": str(self._ca),
        }

    def register(self, ignition: Script | None = None, version: str = "") -> str:
        """Register an infra-env without arguments and ramdisk; return its identifier."""
        infra_env_id = str(uuid.uuid4())
        self.tell(infra_env_id, ignition or Reply(CONFIG), Call.IGNITION)
        self.tell(infra_env_id, Reply(b'{"openshift_version": "%b"}' % version.encode()), Call.INFRA_ENV)
        self.tell(infra_env_id, Reply(status=204), Call.RAMDISK)
        return infra_env_id

    def tell(self, infra_env_id: str, script: Script, *calls: Call) -> None:
        """Script the replies to some calls about an infra-env, by default to all calls."""
        for call in calls or Call:
            self._scripts[_path(infra_env_id, call)] = script

    def count(self, infra_env_id: str, call: Call = Call.IGNITION) -> int:
        """Return the number of calls of a kind about an infra-env."""
        return self._counts[_path(infra_env_id, call)]

    def run(self) -> None:
        """Serve until ``stop``."""
        self._server.serve_forever(poll_interval=0.01)

    def end(self) -> None:
        """End every wait and every connection."""
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        script = self._scripts.get(path, self.unknown)
        with self._counted(path, handler.connection):
            reply = script if isinstance(script, Reply) else script(handler)
            handler.close_connection = not reply.is_sound
            if reply.after_seconds != 0 and self.ended.wait(reply.after_seconds):
                handler.close_connection = True
                return
        _send(handler, reply)
        if reply.holds:
            self.ended.wait()

    @contextmanager
    def _counted(self, path: str, connection: socket.socket) -> Iterator[None]:
        """Count a call until its reply begins."""
        with self._lock:
            self._counts[path] += 1
            self._asking.append(connection)
            left, _, _ = select.select(self._asking, (), (), 0)  # nothing follows a request but the end
            self.most_at_once = max(self.most_at_once, len(self._asking) - len(left))
        try:
            yield
        finally:
            with self._lock:
                self._asking.remove(connection)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined at the end, so that no test leaves one behind
    request_queue_size = 128

    def __init__(
        self, answer: Callable[[http.server.BaseHTTPRequestHandler], None], certificate: Certificate
    ) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.chain, certificate.key)
        super().__init__(("127.0.0.1", 0), _handler(answer))

    def finish_request(self, request: object, client_address: object) -> None:
        """Do the TLS handshake in the connection's own thread."""
        assert isinstance(request, socket.socket)
        request.getpeername()  # raises if the client has reset the connection; wrap_socket would leak it then
        with self._context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect in the middle of a response."""


def _handler(
    answer: Callable[[http.server.BaseHTTPRequestHandler], None],
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _send(handler: http.server.BaseHTTPRequestHandler, reply: Reply) -> None:
    if reply.has_head:
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if reply.status != http.HTTPStatus.NO_CONTENT:
            promised = len(reply.body) if reply.promised is None else reply.promised
            handler.send_header("Content-Length", str(promised))
        handler.end_headers()
    handler.wfile.write(reply.body)
    if reply.resets:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@contextmanager
def running(certificate: Certificate) -> Iterator[Upstream]:
    """Run an upstream until the block ends."""
    upstream = Upstream(certificate)
    thread = threading.Thread(target=upstream.run)
    thread.start()
    try:
        yield upstream
    finally:
        upstream.end()
        thread.join()


def _path(infra_env_id: str, call: Call) -> str:
    return f"{INFRA_ENVS}/{infra_env_id}{call.value}"

"""Connections of the HTTP client: how they are opened, and the requests on one, one after another."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any, BinaryIO

import h11

from image_service.common.http.errors import Disconnected, HttpError, TooSlow, failure_of
from image_service.common.http.origins import bracketed
from image_service.common.http.response import BLOCK_BYTES, MAX_HEAD_BYTES, receive_response
from image_service.common.http.tunneled_tls import TunneledTls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from image_service.common.http.origins import Proxy, UrlOrigin
    from image_service.common.http.response import HttpResponse
    from image_service.common.http.tunneled_tls import Stream
    from image_service.common.http.watch import Watch

_UPLOADS = {"POST", "PUT", "PATCH"}


class HttpConnection:
    """A connection that is open; used by one thread at a time."""

    def __init__(self, opened: Stream) -> None:
        self._socket = opened

    def send(
        self,
        method: str,
        target: str,
        fields: Mapping[str, str],
        body: bytes | BinaryIO | None,
        watch: Watch,
    ) -> HttpResponse:
        """Send a request, and return the response, whose body is still to be read.

        Args:
            method: in capitals.
            target: in ASCII.
            fields: with Host; with Content-Length if `body` is a file.
            watch: of this request and its response.

        Raises:
            HttpError: there is no response.
            Interrupted: the work is abandoned.
        """
        protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        watch.interruption.watch_socket(_socket_of(self._socket))
        if not hasattr(body, "read") and (body is not None or method in _UPLOADS):
            fields = {**fields, "Content-Length": str(len(body or b""))}
        try:
            # By itself h11 encodes in ASCII.
            headers = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
            head = protocol.send(h11.Request(method=method, target=target, headers=headers))
            watch.send(self._socket, head or b"")
            for block in _blocks(body):
                watch.send(self._socket, protocol.send(h11.Data(block)) or b"")
            protocol.send(h11.EndOfMessage())
        except (h11.LocalProtocolError, UnicodeError):
            raise HttpError("the request cannot be written as HTTP") from None
        except Disconnected:
            if body is None:
                raise
            # A server may refuse a body before it has read all of it.
        return receive_response(protocol, self._socket, watch, is_head=method == "HEAD")

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _blocks(body: bytes | BinaryIO | None) -> Iterable[bytes]:
    if body is None or isinstance(body, bytes):
        return [body] if body else []
    return iter(lambda: body.read(BLOCK_BYTES), b"")


def open_tcp(
    host: str, port: int, watch: Watch, check_address: Callable[[str], None] | None
) -> socket.socket:
    """Return a socket that is connected to the first address of a host that accepts it.

    The addresses that were checked are those that are connected to; the name is resolved once.

    Args:
        host: name or address.
        check_address: called with each address of the host before one is connected to; raises if that is not
            allowed.

    Raises:
        HttpError: there is no connection.
        Interrupted: the work is abandoned.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise HttpError("its name does not resolve: it is not a host name", is_connected=False) from None
    except OSError as error:
        raise failure_of(error, is_connected=False) from None
    if check_address:
        for *_, address in found:
            check_address(str(address[0]))
    failure = HttpError("its name has no address", is_connected=False)
    for family, kind, protocol, _, address in found:
        try:
            return _connect(socket.socket(family, kind, protocol), address, watch)
        except OSError as error:  # also of a family that this machine does not have
            failure = _connect_failure(error, watch)
    raise failure


def open_unix(path: Path, watch: Watch) -> socket.socket:
    """Return a socket that is connected to a unix socket; raises as `open_tcp` does."""
    try:
        return _connect(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(path), watch)
    except OSError as error:
        raise _connect_failure(error, watch) from None


def _connect(opened: socket.socket, address: tuple[Any, ...] | str, watch: Watch) -> socket.socket:
    """Connect a socket, which is closed on failure."""
    try:
        opened.settimeout(watch.connect_seconds())
        opened.connect(address)
        if opened.family != socket.AF_UNIX:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        opened.close()
        raise
    return opened


def _connect_failure(error: OSError, watch: Watch) -> HttpError:
    if isinstance(error, TimeoutError):
        return TooSlow(f"no connection in {watch.limits.connect_seconds:g} s", is_connected=False)
    return failure_of(error, is_connected=False)


def _socket_of(opened: Stream) -> socket.socket:
    return opened.outer if isinstance(opened, TunneledTls) else opened


def secure(opened: Stream, context: ssl.SSLContext, host: str, watch: Watch) -> Stream:
    """Return TLS over a connection that is open, which is closed on failure.

    Raises:
        UntrustedCertificate: the peer's certificate is not verified.
        HttpError: there is no TLS.
        Interrupted: the work is abandoned.
    """
    secured: ssl.SSLSocket | TunneledTls | None = None
    name = host.removesuffix(".")  # of the root, which is not in certificates
    try:
        plain = _socket_of(opened)
        if isinstance(plain, ssl.SSLSocket):
            secured = TunneledTls(plain, context, name)
        else:
            secured = context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False)
        watch.interruption.watch_socket(_socket_of(secured))
        secured.settimeout(watch.connect_seconds())
        secured.do_handshake()
    except BaseException as error:
        (secured or opened).close()
        watch.interruption.raise_if_interrupted()
        if isinstance(error, TimeoutError):
            text = f"no connection in {watch.limits.connect_seconds:g} s; the port may not speak HTTPS"
            raise TooSlow(text, is_connected=False, in_handshake=True) from None
        if isinstance(error, OSError):
            raise failure_of(error, is_connected=False) from None
        if isinstance(error, ValueError):  # of ssl: no certificate can have this name
            raise HttpError("TLS failed: its name is not valid", is_connected=False) from None
        raise
    return secured


def open_tunnel(opened: Stream, origin: UrlOrigin, proxy: Proxy, watch: Watch) -> None:
    """Let a proxy connect a socket to an origin; HttpError if it does not."""
    authority = f"{bracketed(origin.host)}:{origin.port}"
    fields = {"Host": authority}
    if proxy.authorization:
        fields["Proxy-Authorization"] = proxy.authorization
    status = HttpConnection(opened).send("CONNECT", authority, fields, None, watch).status
    if not 200 <= status < 300:  # noqa: PLR2004 - RFC 9110 section 9.3.6
        raise HttpError(f"Tunnel connection failed: {status}", is_connected=False)

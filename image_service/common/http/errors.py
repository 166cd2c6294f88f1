"""Why a request failed, in texts without URL, secrets, or anything that the peer has sent."""

from __future__ import annotations

import socket
import ssl


class HttpError(Exception):
    """No response, or not all of it; the text names the cause.

    Args:
        is_connected: False: there was no connection, or no TLS on it.
    """

    def __init__(self, reason: str, *, is_connected: bool = True) -> None:
        super().__init__(reason)
        self.is_connected = is_connected


class UntrustedCertificate(HttpError):
    """The peer's certificate is not verified, for the reason that OpenSSL names."""


class TooSlow(HttpError):
    """The peer took longer than it may.

    Args:
        is_connected: False: there was no connection yet, or no TLS on it.
        in_handshake: it did not answer TLS.
    """

    def __init__(self, reason: str, *, is_connected: bool = True, in_handshake: bool = False) -> None:
        super().__init__(reason, is_connected=is_connected)
        self.in_handshake = in_handshake


class Disconnected(HttpError):
    """The peer closed the connection before its response."""


def failure_of(error: OSError, *, is_connected: bool = True) -> HttpError:
    """Return the failure that an error of a socket is."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedCertificate(f"certificate: {error.verify_message}", is_connected=False)
    if isinstance(error, ssl.SSLError):
        is_plain = error.reason == "WRONG_VERSION_NUMBER"
        text = "the port may not speak HTTPS" if is_plain else error.reason or error.strerror
        return HttpError(f"TLS failed: {text}", is_connected=is_connected)
    if isinstance(error, socket.gaierror):
        return HttpError(f"its name does not resolve: {error.strerror}", is_connected=False)
    reason = error.strerror or "the connection failed"
    return (Disconnected if isinstance(error, ConnectionError) else HttpError)(
        reason, is_connected=is_connected
    )

"""Why a request failed, in texts without URL, secrets, or anything that the peer has sent."""

from __future__ import annotations

import socket
import ssl

# X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, _CERT_SIGNATURE_FAILURE (of another authority of the same name),
# _DEPTH_ZERO_SELF_SIGNED_CERT, _SELF_SIGNED_CERT_IN_CHAIN, _UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
# _UNABLE_TO_VERIFY_LEAF_SIGNATURE
_NO_AUTHORITY = {2, 7, 18, 19, 20, 21}
_OTHER_HOST = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH


class HttpError(Exception):
    """No response, or not all of it; the text names the cause.

    Args:
        is_connected: False: there was no connection, or no TLS on it.
    """

    def __init__(self, reason: str, *, is_connected: bool = True) -> None:
        super().__init__(reason)
        self.is_connected = is_connected


class UntrustedCertificate(HttpError):
    """The peer's certificate is not verified, for the reason that OpenSSL names.

    Args:
        lacks_authority: it may be right, but no trusted authority has issued it.
    """

    def __init__(self, reason: str, *, lacks_authority: bool) -> None:
        super().__init__(reason, is_connected=False)
        self.lacks_authority = lacks_authority


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
        hint = "; its subjectAltName must have it" * (error.verify_code in _OTHER_HOST)
        return UntrustedCertificate(
            f"certificate: {error.verify_message.removesuffix('.')}{hint}",
            lacks_authority=error.verify_code in _NO_AUTHORITY,
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Disconnected("the connection ended within TLS", is_connected=is_connected)
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

"""Why a server's certificate is refused, in one of a few words, and what can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from OpenSSL.crypto import X509StoreContext, X509StoreContextError
from OpenSSL.SSL import Error, X509VerificationCodes
from service_identity import VerificationError

if TYPE_CHECKING:
    from OpenSSL.SSL import Connection

ADVICE = {
    "tls-untrusted": "no trusted authority vouches for the certificate; --cacert FILE adds one",
    "tls-expired": "the certificate or one above it has expired; the server needs a new one",
    "tls-not-yet-valid": "the certificate is for a time to come; compare the clocks of both sides",
    "tls-wrong-name": "the certificate is for other hosts; the URL needs one of their names",
}
"""By kind of error."""

_REFUSED = "certificate verify failed"
_KINDS = {
    X509VerificationCodes.ERR_CERT_HAS_EXPIRED: "tls-expired",
    X509VerificationCodes.ERR_CERT_NOT_YET_VALID: "tls-not-yet-valid",
    X509VerificationCodes.ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "tls-untrusted",
    X509VerificationCodes.ERR_SELF_SIGNED_CERT_IN_CHAIN: "tls-untrusted",
    X509VerificationCodes.ERR_UNABLE_TO_GET_ISSUER_CERT: "tls-untrusted",
    X509VerificationCodes.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "tls-untrusted",
}


def kind_of(error: BaseException | None, connection: Connection) -> str | None:
    """Find the word for what ended a TLS connection.

    Args:
        error: what Twisted gives as the reason.
        connection: to the server.

    Returns:
        a key of ``ADVICE``; ``tls`` for other faults of TLS; None: it is none.
    """
    if isinstance(error, VerificationError):
        return "tls-wrong-name"
    if not isinstance(error, Error):
        return None
    reasons = [reason for *_, reason in error.args[0]] if error.args else []
    return _refusal(connection) if _REFUSED in reasons else "tls"


def _refusal(connection: Connection) -> str:
    """Verify once more, for the error holds no cause."""
    store, chain = connection.get_context().get_cert_store(), connection.get_peer_cert_chain()
    if store and chain:
        try:
            X509StoreContext(store, chain[0], chain).verify_certificate()
        except X509StoreContextError as error:
            return _KINDS.get(error.errors[0], "tls")
    return "tls"

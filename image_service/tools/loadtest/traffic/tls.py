"""TLS towards the tested servers: which certificates are trusted, and why one was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from OpenSSL import SSL
from OpenSSL.crypto import X509StoreContext, X509StoreContextError
from service_identity import VerificationError as IdentityError
from twisted.web.client import BrowserLikePolicyForHTTPS

from image_service.common.http.trust_root import TrustRoot
from image_service.common.http.unverified_tls import UnverifiedTls

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.web.iweb import IPolicyForHTTPS

ADVICE = {
    "tls-untrusted": "no trusted authority issued the certificate; --cacert FILE adds one",
    "tls-expired": "the certificate, or one above it, has expired; install a new one on the server",
    "tls-not-yet-valid": "the certificate is not valid yet; compare the clocks of both machines",
    "tls-wrong-name": "the certificate is for other hosts; use one of its names in the URL",
    "tls-no-name": "the certificate has no subjectAltName, and its common name does not count",
}
"""The next step for the operator, by kind of error."""

_VERIFY_FAILED = "certificate verify failed"
_CODES = SSL.X509VerificationCodes
_KINDS = {
    _CODES.ERR_CERT_HAS_EXPIRED: "tls-expired",
    _CODES.ERR_CERT_NOT_YET_VALID: "tls-not-yet-valid",
    _CODES.ERR_DEPTH_ZERO_SELF_SIGNED_CERT: "tls-untrusted",
    _CODES.ERR_SELF_SIGNED_CERT_IN_CHAIN: "tls-untrusted",
    _CODES.ERR_UNABLE_TO_GET_ISSUER_CERT: "tls-untrusted",
    _CODES.ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY: "tls-untrusted",
}


def https_policy(ca_file: Path | None = None, *, insecure: bool = False) -> IPolicyForHTTPS:
    """Return the policy that trusts the system's authorities and those of a PEM file; insecure: any."""

    def add(context: SSL.Context) -> None:
        context.set_default_verify_paths()
        if ca_file is not None:
            context.load_verify_locations(str(ca_file))

    return UnverifiedTls() if insecure else BrowserLikePolicyForHTTPS(TrustRoot(add))


def tls_error_kind(error: BaseException | None, connection: SSL.Connection) -> str | None:
    """Return a key of ``ADVICE``, ``tls`` for other TLS errors, or None if the error is not one of TLS."""
    if isinstance(error, IdentityError):
        return "tls-wrong-name"
    if not isinstance(error, SSL.Error):
        return None
    reasons = [reason for *_, reason in error.args[0]] if error.args else []
    if _VERIFY_FAILED not in reasons:
        return "tls"
    store, chain = connection.get_context().get_cert_store(), connection.get_peer_cert_chain()
    if store and chain:
        try:  # once more: the error itself does not hold the cause
            X509StoreContext(store, chain[0], chain).verify_certificate()
        except X509StoreContextError as cause:
            return _KINDS.get(cause.errors[0], "tls")
    return "tls"

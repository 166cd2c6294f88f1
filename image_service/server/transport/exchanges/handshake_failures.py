"""TLS handshakes that fail: counted by reason, and logged, summed up by client and minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from OpenSSL import SSL
from twisted.logger import Logger

from image_service.server.transport.admission.addresses import unmapped
from image_service.server.transport.sending.observer import HandshakeFailure
from image_service.server.transport.tls.certificate import describe_tls_error

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from image_service.server.transport.exchanges.failures import RecentFailures
    from image_service.server.transport.sending.observer import Observer

SUMMARY_SECONDS = 60
MAX_LINES = 100
"""How many clients, and reasons of each, have lines of their own within a minute."""

_NOT_TRUSTED = (  # RFC 8446 section 6.2
    "bad certificate",
    "unsupported certificate",
    "certificate revoked",
    "certificate expired",
    "certificate unknown",
    "unknown ca",
)
_PROTOCOL_VERSION = ("unsupported protocol", "version too low", "alert protocol version")
_NOTHING_SHARED = ("no shared", "no suitable", "alert handshake failure", "alert insufficient security")
_NOT_TLS = ("wrong version number", "http request", "https proxy request")

_EXPLANATIONS = {
    HandshakeFailure.NOT_TRUSTED: (
        "the client does not trust the certificate: it must know the authority that signed HTTPS_CERT_FILE,"
        " and that file must contain the intermediate certificates"
    ),
    HandshakeFailure.PROTOCOL_VERSION: "the client supports neither TLS 1.2 nor TLS 1.3",
    HandshakeFailure.NO_SHARED_CIPHER: (
        "the client and this service have no cipher suite, group or signature algorithm in common;"
        " TLS_LEGACY_CIPHERS allows older suites"
    ),
    HandshakeFailure.NOT_TLS: "the client does not speak TLS",
    HandshakeFailure.TIMEOUT: "not complete within HANDSHAKE_TIMEOUT",
    HandshakeFailure.CLOSED: (
        "the client closed the connection; some clients do so when they do not trust the certificate"
    ),
    HandshakeFailure.PROTOCOL_ERROR: "a message is invalid",
}


def find_failure(error: BaseException | None, *, completed: bool) -> tuple[HandshakeFailure, str] | None:
    """Return why a handshake failed, and the cause in OpenSSL's words; None if it did not fail.

    Args:
        error: why the connection was lost, before it was used.
        completed: True if our side of the handshake was complete: an alert of the client may follow.
    """
    if not isinstance(error, SSL.Error):
        return None if completed else (HandshakeFailure.CLOSED, "")
    cause = describe_tls_error(error)
    for failure, texts in (
        (HandshakeFailure.NOT_TRUSTED, [f"alert {text}" for text in _NOT_TRUSTED]),
        (HandshakeFailure.PROTOCOL_VERSION, _PROTOCOL_VERSION),
        (HandshakeFailure.NO_SHARED_CIPHER, _NOTHING_SHARED),
        (HandshakeFailure.NOT_TLS, _NOT_TLS),
    ):
        if any(text in cause for text in texts):
            return failure, cause
    return HandshakeFailure.PROTOCOL_ERROR, cause


@attrs.define
class _Line:
    """The failures of one client for one reason: the latest cause, and their number since the last line."""

    cause: str
    count: int = 0


class HandshakeFailures:
    """Counts failed handshakes, and logs them.

    The first one of a client is logged at once, then their number once a minute while there are some. Clients
    beyond `MAX_LINES` share a line.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, observer: Observer, recent: RecentFailures) -> None:
        self._clock = clock
        self._observer = observer
        self._recent = recent
        self._lines: dict[tuple[str, HandshakeFailure], _Line] = {}
        self._others = 0
        self._timer: IDelayedCall | None = None

    def record(self, client: str, failure: HandshakeFailure, cause: str = "") -> None:
        """Record one.

        Args:
            client: its address, as the socket has it.
            cause: in OpenSSL's words; empty if it has none.
        """
        self._observer.record_handshake_failure(failure)
        client = unmapped(client)
        self._recent.record_handshake(client, failure, f"TLS handshake: {_explain(failure, cause)}")
        line = self._lines.get((client, failure))
        if line is not None:
            line.count += 1
            line.cause = cause
        elif len(self._lines) < MAX_LINES:
            self._lines[client, failure] = _Line(cause)
            self._log.warn(
                "a TLS handshake of {client} failed: {cause}",
                client=client,
                reason=failure.value,
                cause=_explain(failure, cause),
            )
        else:
            self._others += 1
        if self._timer is None:
            self._timer = self._clock.callLater(SUMMARY_SECONDS, self._end_minute)

    def close(self) -> None:
        """Log the counts that have not been logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._sum_up()

    def _end_minute(self) -> None:
        self._timer = None
        self._sum_up()
        if self._lines:
            self._timer = self._clock.callLater(SUMMARY_SECONDS, self._end_minute)

    def _sum_up(self) -> None:
        """Log the counts of the last minute, and forget the clients without any."""
        self._lines = {key: line for key, line in self._lines.items() if line.count}
        for (client, failure), line in self._lines.items():
            self._log.warn(
                "{handshakes} of {client} failed within {seconds} s: {cause}",
                handshakes=_count(line.count),
                count=line.count,
                client=client,
                reason=failure.value,
                seconds=SUMMARY_SECONDS,
                cause=_explain(failure, line.cause),
            )
            line.count = 0
        if self._others:
            self._log.warn(
                "{handshakes} of other clients failed within {seconds} s",
                handshakes=_count(self._others),
                count=self._others,
                seconds=SUMMARY_SECONDS,
            )
            self._others = 0


def _count(handshakes: int) -> str:
    return f"{handshakes} TLS handshake{'' if handshakes == 1 else 's'}"


def _explain(failure: HandshakeFailure, cause: str) -> str:
    return _EXPLANATIONS[failure] + (f" ({cause})" if cause else "")

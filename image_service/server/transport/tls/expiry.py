"""Warnings of a certificate that ends: after each reload, and once a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.files.certificates import describe_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.transport.tls.certificate import ServerCertificate

CHECK_SECONDS = 60
_WARNING_PERIOD = timedelta(days=1)


class ExpiryWarnings:
    """Logs a warning while a certificate has expired or ends soon; the start has warned of the first one.

    Args:
        now: returns the time, with a time zone.
    """

    _log = Logger()

    def __init__(
        self, certificate: ServerCertificate, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._certificate = certificate
        self._now = now
        self._checked = certificate.get()
        self._checked_at = now()

    def check(self) -> None:
        """Warn, if a new certificate is in use or a day has passed; call it every `CHECK_SECONDS`."""
        loaded, now = self._certificate.get(), self._now()
        if loaded is self._checked and now - self._checked_at < _WARNING_PERIOD:
            return
        self._checked, self._checked_at = loaded, now
        warning = describe_end(self._certificate.file, loaded.not_after, now)
        if warning is not None:
            self._log.warn("{warning}", warning=warning)

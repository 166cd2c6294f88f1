"""Warnings of a certificate that ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trustme
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from image_service.server.transport.tls.certificate import CHECK_SECONDS, ExpiryWarnings, ServerCertificate

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2027, 3, 1, tzinfo=UTC)
AUTHORITY = trustme.CA()


@attrs.define
class Host:
    """A machine with a certificate, whose time passes in steps of a check."""

    directory: Path
    clock: Clock = attrs.field(factory=Clock)

    def install(self, days: float) -> None:
        """Write a certificate that ends so many days after now."""
        leaf = AUTHORITY.issue_cert("localhost", not_after=self.now() + timedelta(days=days))
        (self.directory / "tls.key").write_bytes(leaf.private_key_pem.bytes())
        (self.directory / "tls.crt").write_bytes(leaf.cert_chain_pems[0].bytes())

    def start(self) -> ExpiryWarnings:
        key, chain = self.directory / "tls.key", self.directory / "tls.crt"
        return ExpiryWarnings(ServerCertificate(key, chain, self.clock), self.now)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock.seconds())

    def run(self, warnings: ExpiryWarnings, days: float) -> list[str]:
        """Check for so many days, and return the warnings."""
        with capturedLogs() as events:
            for _ in range(round(days * 24 * 3600 / CHECK_SECONDS)):
                self.clock.advance(CHECK_SECONDS)
                warnings.check()
        return [str(formatEvent(each)) for each in events if each["log_level"] is LogLevel.warn]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_warning_once_a_day_from_14_days_before_the_end(host: Host) -> None:
    host.install(days=15.5)
    warnings = host.start()
    assert host.run(warnings, 1.5) == []
    texts = host.run(warnings, 3)
    remaining = [text.partition("expires in ")[2].partition(",")[0] for text in texts]
    assert remaining == ["13 days", "12 days", "11 days"]
    assert all(str(host.directory / "tls.crt") in text for text in texts)


def test_expired_certificate_is_warned_of_once_a_day(host: Host) -> None:
    host.install(days=-1)
    (text,) = host.run(host.start(), 1)
    assert text.startswith(f"the certificate {host.directory}/tls.crt expired on 2027-02-28 00:00 UTC: ")


def test_reloaded_certificate_is_warned_of_at_the_next_check(host: Host) -> None:
    host.install(days=100)
    warnings = host.start()
    host.install(days=2.5)
    (text,) = host.run(warnings, 0.01)
    assert "expires in 2 days" in text


def test_renewed_certificate_ends_the_warnings(host: Host) -> None:
    host.install(days=2.5)
    warnings = host.start()
    assert len(host.run(warnings, 1)) == 1
    host.install(days=100)
    assert host.run(warnings, 3) == []

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from service_identity import CertificateError
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from image_service.core.errors import ConfigurationError, UpstreamError
from image_service.server.assisted import server as server_module
from image_service.server.assisted.client import AssistedService
from image_service.server.assisted.tls import https_policy
from tests.chains import REFUSED, TRUSTED, write_chain
from tests.pytwisted import ensure_deferred
from tests.server.assisted.clocked import ClockedReactor, OneAddress
from tests.server.assisted.upstream import IGNITION, issue, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IOpenSSLClientConnectionCreator

    from image_service.server.standalone.service import Standalone
    from tests.conftest import LoggedFailures

UNTRUSTED = "the issuer of its certificate is not trusted; check ASSISTED_SERVICE_API_TRUSTED_CA_FILE"
ID = "5a3b1e00-0000-4000-8000-000000000009"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@pytest.fixture
def no_system_roots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))


@asynccontextmanager
async def client(
    reactor: EPollReactor, base_url: str, ca_file: Path | None = None, *, insecure: bool = False
) -> AsyncIterator[AssistedService]:
    assisted = AssistedService(reactor, base_url, ca_file=ca_file, insecure=insecure)
    try:
        yield assisted
    finally:
        await assisted.close()


async def fetch(
    reactor: EPollReactor, base_url: str, ca_file: Path | None = None, *, insecure: bool = False
) -> bytes:
    async with client(reactor, base_url, ca_file, insecure=insecure) as assisted:
        return (await assisted.fetch_ignition(ID, None, None)).config


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
@ensure_deferred
async def test_name_or_address_of_the_certificate_is_accepted(
    reactor: EPollReactor, authority: trustme.CA, ca_file: Path, tmp_path: Path, host: str
) -> None:
    certificate = issue(authority, tmp_path, host.strip("[]"))
    interface = "::1" if host == "[::1]" else "127.0.0.1"
    async with upstream(reactor, interface, certificate) as server:
        assert await fetch(reactor, f"https://{host}:{server.port}", ca_file) == IGNITION
        (request,) = server.requests
    assert f"Host: {host}:{server.port}\r\n".encode() in request


@ensure_deferred
async def test_certificate_has_the_name_without_the_dot_of_the_root(
    reactor: EPollReactor, authority: trustme.CA, ca_file: Path, tmp_path: Path
) -> None:
    clocked: Any = ClockedReactor(reactor)
    clocked.nameResolver = OneAddress()
    async with upstream(reactor, certificate=issue(authority, tmp_path, "assisted.svc")) as server:
        assert await fetch(clocked, f"https://assisted.svc.:{server.port}", ca_file) == IGNITION


@pytest.mark.parametrize("names", [("example.test",), ("127.0.0.2",), ("localhost",)])
@ensure_deferred
async def test_certificate_for_another_host_is_refused(
    reactor: EPollReactor, authority: trustme.CA, ca_file: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    async with upstream(reactor, certificate=issue(authority, tmp_path, *names)) as server:
        with pytest.raises(UpstreamError, match="not for this host") as caught:
            await fetch(reactor, f"https://127.0.0.1:{server.port}", ca_file)
        assert server.requests == [], "the request must not be sent"
    assert caught.value.retry_after_seconds


def replace(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.rename(file)


@ensure_deferred
async def test_changed_ca_file_applies_to_new_connections(
    reactor: EPollReactor,
    authority: trustme.CA,
    ca_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("image_service.common.files.reloaded.CHECK_SECONDS", 0)
    others = trustme.CA()
    async with upstream(reactor, certificate=issue(others, tmp_path, "127.0.0.1")) as server:
        server.close = True  # each request has a connection of its own
        async with client(reactor, f"https://127.0.0.1:{server.port}", ca_file) as assisted:
            with pytest.raises(UpstreamError, match=UNTRUSTED):
                await assisted.fetch_ignition(ID, None, None)
            replace(ca_file, authority.cert_pem.bytes() + others.cert_pem.bytes())
            assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
            replace(ca_file, b"no certificate")
            assert (await assisted.fetch_ignition(ID, None, None)).config == IGNITION
            replace(ca_file, authority.cert_pem.bytes())
            with pytest.raises(UpstreamError, match=UNTRUSTED):
                await assisted.fetch_ignition(ID, None, None)


@ensure_deferred
async def test_context_is_made_only_for_a_new_connection(
    reactor: EPollReactor, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests on a kept-alive connection need none."""
    asked_for: list[bytes] = []

    @implementer(IPolicyForHTTPS)
    class Counting:
        def creatorForNetloc(self, hostname: bytes, port: int) -> IOpenSSLClientConnectionCreator:
            asked_for.append(hostname)
            return https_policy(insecure=True).creatorForNetloc(hostname, port)

    monkeypatch.setattr(server_module, "https_policy", lambda *_, **__: Counting())
    certificate = issue(authority, tmp_path, "localhost")
    async with upstream(reactor, certificate=certificate) as server:
        async with client(reactor, f"https://localhost:{server.port}") as assisted:
            for _ in range(3):
                await assisted.fetch_ignition(ID, None, None)
        assert len(server.requests) == 3
    assert asked_for == [b"localhost"]


def test_unchanged_ca_file_is_not_read_again(ca_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("image_service.common.files.reloaded.CHECK_SECONDS", 0)
    policy = https_policy(ca_file)
    monkeypatch.setattr(Path, "read_bytes", None)
    for _ in range(3):
        policy.creatorForNetloc(b"localhost", 443)


@ensure_deferred
async def test_untrusted_authority_is_refused(reactor: EPollReactor, ca_file: Path, tmp_path: Path) -> None:
    certificate = issue(trustme.CA(), tmp_path, "127.0.0.1")
    async with upstream(reactor, certificate=certificate) as server:
        with pytest.raises(UpstreamError, match=UNTRUSTED):
            await fetch(reactor, f"https://127.0.0.1:{server.port}", ca_file)
        assert server.requests == []


@pytest.mark.parametrize("name", TRUSTED)
@ensure_deferred
async def test_certificate_that_go_trusts_is_trusted(
    reactor: EPollReactor, name: str, tmp_path: Path
) -> None:
    chain = write_chain(name, tmp_path)
    async with upstream(reactor, certificate=chain.certificate) as server:
        assert await fetch(reactor, f"https://localhost:{server.port}", chain.ca_file) == IGNITION


@pytest.mark.parametrize("name", REFUSED)
@ensure_deferred
async def test_certificate_that_go_refuses_is_refused(
    reactor: EPollReactor, name: str, tmp_path: Path, logged_failures: LoggedFailures
) -> None:
    chain = write_chain(name, tmp_path)
    async with upstream(reactor, certificate=chain.certificate) as server:
        with pytest.raises(UpstreamError, match="certificate"):
            await fetch(reactor, f"https://localhost:{server.port}", chain.ca_file)
        assert server.requests == []
    logged_failures.flush(CertificateError)  # Twisted logs it, and accepts the certificate


@ensure_deferred
async def test_stand_in_is_untrusted_without_its_authority(
    reactor: EPollReactor, standalone: Standalone
) -> None:
    with pytest.raises(UpstreamError, match=UNTRUSTED):
        await fetch(reactor, standalone.base_url)


@ensure_deferred
async def test_ca_file_is_added_to_the_system_authorities(
    reactor: EPollReactor, ca_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = trustme.CA()
    system.cert_pem.write_to_path(tmp_path / "system.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    async with upstream(reactor, certificate=issue(system, tmp_path, "127.0.0.1")) as server:
        base_url = f"https://127.0.0.1:{server.port}"
        assert await fetch(reactor, base_url) == IGNITION
        assert await fetch(reactor, base_url, ca_file) == IGNITION


@pytest.mark.usefixtures("no_system_roots")
@ensure_deferred
async def test_system_authorities_may_be_in_a_directory(
    reactor: EPollReactor, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "certs"
    directory.mkdir()
    authority.cert_pem.write_to_path(directory / "0a1b2c3d.0")
    (directory / "4e5f6071.0").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("SSL_CERT_DIR", str(directory))
    async with upstream(reactor, certificate=issue(authority, tmp_path, "127.0.0.1")) as server:
        assert await fetch(reactor, f"https://127.0.0.1:{server.port}") == IGNITION


@pytest.mark.usefixtures("no_system_roots")
@ensure_deferred
async def test_ca_file_may_hold_several_authorities(
    reactor: EPollReactor, authority: trustme.CA, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"# ours\n" + trustme.CA().cert_pem.bytes() + authority.cert_pem.bytes())
    async with upstream(reactor, certificate=issue(authority, tmp_path, "127.0.0.1")) as server:
        assert await fetch(reactor, f"https://127.0.0.1:{server.port}", bundle) == IGNITION


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@ensure_deferred
async def test_insecure_accepts_any_certificate(reactor: EPollReactor, tmp_path: Path, host: str) -> None:
    certificate = issue(trustme.CA(), tmp_path, "example.test")
    async with upstream(reactor, certificate=certificate) as server:
        url = f"https://{host}:{server.port}"
        assert await fetch(reactor, url, tmp_path / "not read", insecure=True) == IGNITION


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no certificate",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ],
)
def test_ca_file_without_certificates_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"ca\.pem contains (no PEM|a damaged) certificate$"):
        https_policy(tmp_path / "ca.pem")


def test_missing_ca_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ca\.pem cannot be read: No such file or directory$"):
        https_policy(tmp_path / "ca.pem")

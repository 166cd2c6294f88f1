"""The certificate of new connections while its files change."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from OpenSSL import SSL
from twisted.internet.task import Clock

from image_service.common.files.reloaded import CHECK_SECONDS
from image_service.core.errors import ConfigurationError
from image_service.server.transport.tls.certificate import ServerCertificate
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.reactor_turns import until
from tests.server.transport.server import SMALL_BUFFER, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.transport.client import Client
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

PEM = serialization.Encoding.PEM
EMPTY_KEY = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
PASSPHRASE = serialization.BestAvailableEncryption(b"passphrase")


@attrs.define
class Shown:
    """A server and the files of its certificate.

    Args:
        server: runs.
        directory: the files'.
        clock: the certificate's.
        authority: signs every certificate.
    """

    server: Server
    directory: Path
    clock: Clock
    authority: trustme.CA

    def issue(self) -> trustme.LeafCert:
        return self.authority.issue_cert("localhost")

    def write(self, key: trustme.LeafCert, chain: trustme.LeafCert) -> None:
        write(self.directory, key, chain)

    def pass_time(self) -> None:
        self.clock.advance(CHECK_SECONDS)

    async def connect(self, session: ssl.SSLSession | None = None) -> tuple[Client, int]:
        """Return a client with TLS, and the serial number of the server's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        client = self.server.connect(receive_buffer=SMALL_BUFFER)
        await self.server.secure(client, context, session)
        assert isinstance(client.socket, ssl.SSLSocket)
        shown = client.socket.getpeercert(binary_form=True)
        assert shown is not None
        return client, x509.load_der_x509_certificate(shown).serial_number

    async def serial(self) -> int:
        client, serial = await self.connect()
        assert (await client.ask("/image/0-9")).status == 200
        return serial


def write(directory: Path, key: trustme.LeafCert, chain: trustme.LeafCert) -> None:
    (directory / "tls.key").write_bytes(key.private_key_pem.bytes())
    (directory / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in chain.cert_chain_pems))


def serial_of(leaf: trustme.LeafCert) -> int:
    return x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number


@async_fixture
async def shown(reactor: EPollReactor, handler: ImageHandler, tmp_path: Path) -> AsyncIterator[Shown]:
    authority, clock = trustme.CA(), Clock()
    first = authority.issue_cert("localhost")
    write(tmp_path, first, first)
    certificate = ServerCertificate(tmp_path / "tls.key", tmp_path / "tls.crt", clock)
    async with serving(reactor, handler, secure=True, certificate=certificate) as server:
        yield Shown(server, tmp_path, clock, authority)


@ensure_deferred
async def test_new_connections_use_the_new_certificate(shown: Shown) -> None:
    serials = [await shown.serial()]
    for _ in range(3):
        leaf = shown.issue()
        shown.write(leaf, leaf)
        shown.pass_time()
        serials.append(await shown.serial())
        assert serials[-1] == serial_of(leaf)
    assert len(set(serials)) == 4


@ensure_deferred
async def test_existing_connections_keep_their_certificate(shown: Shown, image: Image) -> None:
    idle, _ = await shown.connect()
    reading, _ = await shown.connect()
    await reading.send(request("/image"))
    await until(shown.server.reactor, lambda: shown.server.recorded.answers)
    leaf = shown.issue()
    shown.write(leaf, leaf)
    shown.pass_time()
    assert await shown.serial() == serial_of(leaf)
    assert (await idle.ask("/image/0-9")).body == image.content[:9]
    assert (await reading.answer()).body == image.content


@ensure_deferred
async def test_session_of_the_old_certificate_is_not_resumed(shown: Shown) -> None:
    """Resumption would skip the new certificate; refusing it must not fail the client either."""
    client, first = await shown.connect()
    await client.ask("/image/0-9")  # the tickets of TLS 1.3 come with the first data
    assert isinstance(client.socket, ssl.SSLSocket)
    session = client.socket.session
    leaf = shown.issue()
    shown.write(leaf, leaf)
    shown.pass_time()
    context = client.socket.context
    again = shown.server.connect()
    await shown.server.secure(again, context, session)
    assert isinstance(again.socket, ssl.SSLSocket)
    assert not again.socket.session_reused
    assert (await again.ask("/image/0-9")).status == 200
    assert first != serial_of(leaf)


@ensure_deferred
async def test_mismatched_key_keeps_the_certificate(shown: Shown) -> None:
    before = await shown.serial()
    old, new = shown.issue(), shown.issue()
    shown.write(key=new, chain=old)
    shown.pass_time()
    assert await shown.serial() == before
    shown.write(key=new, chain=new)
    shown.pass_time()
    assert await shown.serial() == serial_of(new)


@ensure_deferred
async def test_key_of_another_type_keeps_the_certificate(shown: Shown) -> None:
    before = await shown.serial()
    rsa = shown.authority.issue_cert("localhost", key_type=trustme.KeyType.RSA)
    shown.write(key=rsa, chain=shown.issue())
    shown.pass_time()
    assert await shown.serial() == before
    shown.write(rsa, rsa)
    shown.pass_time()
    assert await shown.serial() == serial_of(rsa)


@pytest.mark.parametrize("content", [b"", b"no key", EMPTY_KEY])
@pytest.mark.parametrize("name", ["tls.key", "tls.crt"])
@ensure_deferred
async def test_invalid_file_keeps_the_certificate(shown: Shown, name: str, content: bytes) -> None:
    before = await shown.serial()
    (shown.directory / name).write_bytes(content)
    shown.pass_time()
    assert await shown.serial() == before


@ensure_deferred
async def test_encrypted_key_is_refused_without_a_prompt(
    shown: Shown, capfd: pytest.CaptureFixture[str]
) -> None:
    before = await shown.serial()
    leaf = shown.issue()
    shown.write(leaf, leaf)
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    (shown.directory / "tls.key").write_bytes(
        key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PASSPHRASE)
    )
    shown.pass_time()
    assert await shown.serial() == before
    assert capfd.readouterr() == ("", "")


def test_mismatched_files_are_refused_at_start(tmp_path: Path) -> None:
    authority = trustme.CA()
    write(tmp_path, authority.issue_cert("localhost"), authority.issue_cert("localhost"))
    with pytest.raises(
        ConfigurationError,
        match=r"tls\.crt and .*tls\.key are not a pair: the certificate is",
    ):
        ServerCertificate(tmp_path / "tls.key", tmp_path / "tls.crt", Clock())


# Cipher suites of TLS 1.2.


def suites_of(text: str) -> set[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(f"{text}:@SECLEVEL=0")
    return {suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"}


def accepts(certificate: ServerCertificate, suite: str) -> bool:
    """Return True if a client that offers only this suite completes its handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(f"{suite}:@SECLEVEL=0")
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(received, sent)
    server = certificate.serverConnectionForTLS(None)  # type: ignore[arg-type] # it is not looked at
    server.set_accept_state()
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            server.bio_write(sent.read())
            with suppress(SSL.Error):  # the client receives an alert
                server.do_handshake()
            received.write(server.bio_read(2**16))
        except ssl.SSLError:
            return False
        else:
            cipher = client.cipher()
            assert cipher is not None
            return cipher[0] == suite


@pytest.mark.parametrize("key_type", list(trustme.KeyType))
@pytest.mark.parametrize("legacy", [False, True])
def test_tls_1_2_accepts_these_suites_and_no_others(
    tmp_path: Path, key_type: trustme.KeyType, *, legacy: bool
) -> None:
    leaf = trustme.CA().issue_cert("localhost", key_type=key_type)
    write(tmp_path, leaf, leaf)
    certificate = ServerCertificate(
        tmp_path / "tls.key", tmp_path / "tls.crt", Clock(), legacy_ciphers=legacy
    )
    every = suites_of("ALL:COMPLEMENTOFALL")
    assert len(every) > 50
    authenticated = "RSA" if key_type is trustme.KeyType.RSA else "ECDSA"
    expected = {
        f"ECDHE-{authenticated}-AES{bits}-GCM-SHA{hashed}" for bits, hashed in ((128, 256), (256, 384))
    }
    expected.add(f"ECDHE-{authenticated}-CHACHA20-POLY1305")
    if legacy:
        expected |= {f"ECDHE-{authenticated}-{rest}" for rest in ("AES128-SHA", "AES256-SHA")}
        expected |= {f"ECDHE-{authenticated}-{rest}" for rest in ("AES128-SHA256", "AES256-SHA384")}
        if key_type is trustme.KeyType.RSA:
            expected |= {"AES128-SHA", "AES256-SHA", "AES128-SHA256", "AES256-SHA256"}
            expected |= {"AES128-GCM-SHA256", "AES256-GCM-SHA384"}
    assert {suite for suite in every if accepts(certificate, suite)} == expected

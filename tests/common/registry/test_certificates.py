"""Registries with an authority of their own, and those that ask for a certificate."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.reloaded import Reloaded
from image_service.common.http.watch import RequestLimits
from image_service.common.registry.client import RegistryClient
from image_service.common.registry.connections import RegistryCall, RegistryOptions
from image_service.common.registry.credentials import CredentialStore
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.mirrors import RegistryRules
from image_service.common.registry.references import parse_registry_url
from tests.registry_origin import RAW, RegistryOrigin
from tests.server.catalog.origin import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """The authority of servers and clients."""
    return trustme.CA()


@pytest.fixture
def registry(authority: trustme.CA) -> Iterator[RegistryOrigin]:
    """A registry that reads the certificates of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    with running(context) as origin:
        made = RegistryOrigin(origin)
        made.manifest([(b"iso", RAW)])
        yield made


def resolve(registry: RegistryOrigin, directory: Path, insecure: str = "") -> None:
    options = RegistryOptions(
        Reloaded([], CredentialStore),
        Reloaded([], RegistryRules),
        certs_dirs=(directory, directory / "absent"),
        make_current=Reloaded,
        insecure=frozenset({insecure}),
    )
    call = RegistryCall(RequestLimits(), Interruption())
    RegistryClient(options).resolve(parse_registry_url(registry.url()).reference, "x86_64", call)


def write(authority: trustme.CA, directory: Path) -> None:
    directory.mkdir()
    client = authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(directory / "ca.crt")
    client.private_key_pem.write_to_path(directory / "client.key")
    (directory / "client.cert").write_bytes(b"".join(each.bytes() for each in client.cert_chain_pems))


def test_files_of_the_registry_are_used(
    registry: RegistryOrigin, authority: trustme.CA, tmp_path: Path
) -> None:
    write(authority, tmp_path / registry.host)
    resolve(registry, tmp_path)


def test_files_of_another_port_are_not(
    registry: RegistryOrigin, authority: trustme.CA, tmp_path: Path
) -> None:
    write(authority, tmp_path / "127.0.0.1")
    with pytest.raises(RegistryFailed, match=r"certificate: .*REGISTRY_CERTS_DIR"):
        resolve(registry, tmp_path)


def test_insecure_registry_by_another_name_is_verified(registry: RegistryOrigin, tmp_path: Path) -> None:
    with pytest.raises(RegistryFailed, match="certificate: "):
        resolve(registry, tmp_path, insecure="127.0.0.1")


@pytest.mark.parametrize("name", ["ca.crt", "client.cert", "client.key"])
def test_file_that_cannot_be_used_is_named(
    registry: RegistryOrigin, authority: trustme.CA, tmp_path: Path, name: str
) -> None:
    write(authority, tmp_path / registry.host)
    (tmp_path / registry.host / name).write_text("no PEM")
    with pytest.raises(RegistryFailed, match="cannot be read") as caught:
        resolve(registry, tmp_path)
    assert registry.host in caught.value.reason

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store

from image_service.server.standalone.certificates import CertificateFiles, prepare_certificates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAMES: tuple[x509.verification.Subject, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ip_address("127.0.0.1")),
    x509.IPAddress(ip_address("::1")),
)


def authority(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.ca_file.read_bytes())


def server(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.server_file.read_bytes())


def verify(files: CertificateFiles, name: x509.verification.Subject, now: datetime) -> None:
    policy = PolicyBuilder().store(Store([authority(files)])).time(now)
    policy.build_server_verifier(name).verify(server(files), [])


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_server_certificate_is_valid_for_loopback(tmp_path: Path, name: x509.verification.Subject) -> None:
    files = prepare_certificates(tmp_path, NOW)
    for now in (NOW - timedelta(minutes=59), NOW, NOW + timedelta(days=364)):
        verify(files, name, now)


def test_authority_is_constrained_to_loopback(tmp_path: Path) -> None:
    extensions = authority(prepare_certificates(tmp_path, NOW)).extensions
    constraints = extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    assert {str(name.value) for name in constraints.value.permitted_subtrees or ()} == {
        "127.0.0.0/8",
        "::1/128",
        "localhost",
    }


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_key_files_are_private_and_temporary_files_removed(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        prepare_certificates(tmp_path, NOW)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o600}


def test_valid_certificates_are_kept(tmp_path: Path) -> None:
    files = prepare_certificates(tmp_path, NOW)
    before = files.ca_file.read_bytes(), files.server_file.read_bytes()
    assert prepare_certificates(tmp_path, NOW + timedelta(days=300)) == files
    assert (files.ca_file.read_bytes(), files.server_file.read_bytes()) == before


def test_server_certificate_is_renewed_by_the_same_authority(tmp_path: Path) -> None:
    files = prepare_certificates(tmp_path, NOW)
    before = authority(files), server(files)
    later = NOW + timedelta(days=336)
    prepare_certificates(tmp_path, later)
    assert authority(files) == before[0]
    assert server(files) != before[1]
    verify(files, NAMES[0], later + timedelta(days=364))


def test_authority_is_renewed_before_it_expires(tmp_path: Path) -> None:
    files = prepare_certificates(tmp_path, NOW)
    before = authority(files)
    later = NOW + timedelta(days=3650 - 29)
    prepare_certificates(tmp_path, later)
    assert authority(files) != before
    verify(files, NAMES[0], later)


def _remove(path: Path) -> None:
    path.unlink()


def _garble(path: Path) -> None:
    path.write_bytes(b"garbage")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem"])
@pytest.mark.parametrize("damage", [_remove, _garble, _truncate])
def test_missing_or_damaged_file_is_replaced(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    prepare_certificates(tmp_path, NOW)
    damage(tmp_path / name)
    files = prepare_certificates(tmp_path, NOW)
    verify(files, NAMES[0], NOW)
    key = load_pem_private_key(files.server_file.read_bytes(), None)
    assert key.public_key() == server(files).public_key()


def test_mismatched_authority_key_is_replaced(tmp_path: Path) -> None:
    prepare_certificates(tmp_path, NOW)
    (tmp_path / "other").mkdir()
    prepare_certificates(tmp_path / "other", NOW)
    (tmp_path / "other" / "ca.key").replace(tmp_path / "ca.key")
    files = prepare_certificates(tmp_path, NOW)
    verify(files, NAMES[0], NOW)

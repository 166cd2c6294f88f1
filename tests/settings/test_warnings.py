from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest
import trustme

from image_service.settings import network
from image_service.settings.settings import Settings
from image_service.settings.warnings import find_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PUBLIC = "https://images.example.com"
REACHED = {"IMAGE_SERVICE_BASE_URL": PUBLIC}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install xorriso and gpgv, and nothing else."""
    for name in ("xorriso", "gpgv"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def warnings(tmp_path: Path, environ: Mapping[str, str], *, standalone: bool = False) -> list[str]:
    required = {} if standalone else {"ASSISTED_SERVICE_HOST": "assisted.example"}
    streams = '[{"stream": "stable", "url": "https://mirror.example/x", "architectures": ["x86_64"]}]'
    settings = Settings.from_environment(
        {"DATA_DIR": str(tmp_path), "COREOS_STREAMS": streams, **required, **environ}, standalone=standalone
    )
    return list(find_warnings(settings, settings.base_url(8080), standalone=standalone))


def cannot_reach(url: str) -> str:
    return (
        f"clients elsewhere cannot reach {url}: minimal ISOs, PXE and mirror URLs will not work; set"
        " IMAGE_SERVICE_BASE_URL"
    )


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://localhost:8080"),
        ({"LISTEN_ADDRESS": "127.0.0.1"}, "http://localhost:8080"),
        ({"IMAGE_SERVICE_BASE_URL": "http://127.1.2.3"}, "http://127.1.2.3"),
        ({"IMAGE_SERVICE_BASE_URL": "http://[::1]:80/x"}, "http://[::1]:80/x"),
        ({"IMAGE_SERVICE_BASE_URL": "http://0.0.0.0"}, "http://0.0.0.0"),
        ({"IMAGE_SERVICE_BASE_URL": "http://images.localhost"}, "http://images.localhost"),
    ],
)
def test_base_url_of_this_machine_is_warned_of(tmp_path: Path, environ: dict[str, str], url: str) -> None:
    assert warnings(tmp_path, environ) == [cannot_reach(url)]


@pytest.mark.parametrize(
    "environ",
    [
        REACHED,
        {"IMAGE_SERVICE_BASE_URL": "http://10.0.0.1:8080"},
        {"IMAGE_SERVICE_BASE_URL": "http://localhost.example"},
        {"LISTEN_ADDRESS": "192.0.2.1"},
        {"LISTEN_ADDRESS": "fd00::1"},
    ],
)
def test_other_base_urls_are_not_warned_of(tmp_path: Path, environ: dict[str, str]) -> None:
    assert warnings(tmp_path, environ) == []


def test_standalone_mode_on_loopback_needs_no_base_url(tmp_path: Path) -> None:
    assert warnings(tmp_path, {}, standalone=True) == []


@pytest.mark.parametrize(
    ("address", "more"), [(None, [cannot_reach("http://localhost:8080")]), (IPv4Address("192.0.2.7"), [])]
)
def test_standalone_mode_beyond_loopback_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: IPv4Address | None, more: list[str]
) -> None:
    monkeypatch.setattr(network, "find_default_address", lambda _: address)
    assert warnings(tmp_path, {"LISTEN_ADDRESS": "::"}, standalone=True) == [
        *more,
        "standalone mode serves all images without credentials to everybody who reaches LISTEN_PORT",
    ]


def test_certificates_that_are_not_verified_are_warned_of(tmp_path: Path) -> None:
    upstream = {**REACHED, "ASSISTED_SERVICE_INSECURE_SKIP_VERIFY": "true"}
    (warning,) = warnings(tmp_path, upstream)
    assert warning.startswith("ASSISTED_SERVICE_INSECURE_SKIP_VERIFY is set: anyone on the network can ")
    assert warnings(tmp_path, {**REACHED, "INSECURE_SKIP_VERIFY": "true"}) == [
        "INSECURE_SKIP_VERIFY is set: anyone on the network can replace a download of a base image"
    ]
    assert warnings(tmp_path, upstream | {"LISTEN_ADDRESS": "127.0.0.1"}, standalone=True) == []


@pytest.mark.parametrize(("days", "beginning"), [(-1, "expired on "), (13, "expires in "), (15, None)])
def test_end_of_the_certificate_and_mode_of_the_key_are_warned_of(
    tmp_path: Path, days: int, beginning: str | None
) -> None:
    now = datetime.now(UTC)
    leaf = trustme.CA().issue_cert(
        "localhost", not_before=now - timedelta(days=30), not_after=now + timedelta(days=days)
    )
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    leaf.private_key_pem.write_to_path(key)
    leaf.cert_chain_pems[0].write_to_path(certificate)
    key.chmod(0o644)
    found = warnings(tmp_path, {**REACHED, "HTTPS_KEY_FILE": str(key), "HTTPS_CERT_FILE": str(certificate)})
    assert found.pop() == f"{key} has mode 0644: every user has access to it"
    assert len(found) == (beginning is not None)
    for warning in found:
        assert warning.startswith(f"the certificate {certificate} {beginning}")


def test_token_of_the_administrative_listener_that_others_see_is_warned_of(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o644)
    environ = {**REACHED, "ADMIN_LISTEN": "0.0.0.0:8081", "ADMIN_TOKEN_FILE": str(token)}
    assert warnings(tmp_path, environ) == [
        "ADMIN_LISTEN is beyond loopback without HTTPS_CERT_FILE: its token is sent in clear",
        f"{token} has mode 0644: every user has access to it",
    ]


def test_certificate_that_vanishes_after_the_settings_were_read_is_warned_of(tmp_path: Path) -> None:
    leaf = trustme.CA().issue_cert("localhost")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    leaf.private_key_pem.write_to_path(key)
    leaf.cert_chain_pems[0].write_to_path(certificate)
    settings = Settings.from_environment(
        {"DATA_DIR": str(tmp_path), "HTTPS_KEY_FILE": str(key), "HTTPS_CERT_FILE": str(certificate)},
        standalone=True,
    )
    certificate.unlink()
    assert list(find_warnings(settings, PUBLIC, standalone=True)) == [
        f"{certificate}: No such file or directory"
    ]


def test_mistyped_members_of_base_images_are_named(tmp_path: Path) -> None:
    entry = {
        "openshift_version": "4.18",
        "cpu_architecture": "x86_64",
        "version": "418.94",
        "url": "https://mirror.example/live.iso",
        "rootfs_url": "https://mirror.example/rootfs.img",
        "remot": True,
    }
    assert warnings(tmp_path, {**REACHED, "OS_IMAGES": json.dumps([entry])}) == [
        "OS_IMAGES: unknown members of rhcos-full-iso-418.94-x86_64.iso have no effect: remot"
    ]


def test_digest_of_a_remote_image_is_verified_with_digests_only(tmp_path: Path) -> None:
    entry = {
        "openshift_version": "4.18",
        "cpu_architecture": "x86_64",
        "version": "418.94",
        "url": "https://mirror.example/live.iso",
        "sha256": "ab" * 32,
    }
    digests = {"digests": "https://mirror.example/live.digests", "digests_sha256": "cd" * 32}
    name = "rhcos-full-iso-418.94-x86_64.iso"
    warning = f"OS_IMAGES: sha256 of {name} is not verified: it is remote, and has no digests"
    for members, expected in (({}, []), ({"remote": True}, [warning]), ({"remote": True, **digests}, [])):
        assert warnings(tmp_path, {**REACHED, "OS_IMAGES": json.dumps([{**entry, **members}])}) == expected


def test_missing_programs_are_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\x99\x01\x0d a public key")
    for name in ("xorriso", "gpgv"):
        (tmp_path / name).unlink()
    xorriso, *others = warnings(tmp_path, REACHED)
    assert xorriso.startswith("xorriso is not installed; install the package xorriso: without it ")
    assert others == []
    assert warnings(tmp_path, {**REACHED, "SIGNING_KEYS": str(tmp_path / "keys")}) == [
        xorriso,
        (
            "gpgv is not installed; install the package gpgv: without it no base image is served whose"
            " signature was not verified before"
        ),
    ]


def test_disk_images_alone_are_warned_of(tmp_path: Path) -> None:
    disk = {
        "openshift_version": "4.19",
        "version": "9.6.1-0",
        "cpu_architecture": "x86_64",
        "url": "https://mirror.example/disk.raw.xz",
        "type": "metal-disk",
    }
    environ = {**REACHED, "OS_IMAGES": json.dumps([disk])}
    assert warnings(tmp_path, environ) == []
    assert warnings(tmp_path, {**environ, "COREOS_STREAMS": ""}) == [
        "OS_IMAGES has disk images only, which only the jobs role uses: this service has none to serve"
    ]

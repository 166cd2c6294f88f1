"""The cluster's TLS policy on all listeners, as ``openssl s_client`` meets it."""

from __future__ import annotations

import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import needs_client
from tests.acceptance.service import SERVE, Certificate, run_service
from tests.jobs.tenant_clients import running_with_tenants
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.acceptance

GCM, CHACHA = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
GCM_1_3, CHACHA_1_3 = "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"


def accepts(port: int, *options: str) -> bool:
    """Return True if a handshake succeeds."""
    command = [needs_client("openssl"), "s_client", "-connect", f"127.0.0.1:{port}", *options]
    done = subprocess.run(command, input=b"", capture_output=True, check=False)
    return b"Cipher is (NONE)" not in done.stdout and done.returncode == 0


@pytest.mark.parametrize(
    ("policy", "accepted", "refused"),
    [
        ({}, [("-tls1_2",), ("-tls1_3",)], [("-tls1_1", "-cipher", "ALL@SECLEVEL=0")]),
        ({"TLS_MIN_VERSION": "VersionTLS13"}, [("-tls1_3",)], [("-tls1_2",)]),
        (
            {"TLS_MIN_VERSION": "VersionTLS10"},
            [("-tls1_2",), ("-tls1_3",)],
            [("-tls1", "-cipher", "ALL@SECLEVEL=0")],
        ),
        (
            {"TLS_CIPHER_SUITES": f"{CHACHA_1_3},{GCM},{CHACHA},TLS_KRB5_WITH_RC4_128_SHA"},
            [("-tls1_3", "-ciphersuites", CHACHA_1_3), ("-tls1_3",), ("-tls1_2",)],
            [("-tls1_3", "-ciphersuites", GCM_1_3), ("-tls1_2", "-cipher", "AES128-GCM-SHA256")],
        ),
        ({"TLS_CIPHER_SUITES": f"{GCM_1_3}"}, [("-tls1_3",)], [("-tls1_2",)]),
        ({"TLS_CIPHER_SUITES": f"{GCM}"}, [("-tls1_2",), ("-tls1_3",)], []),
    ],
    ids=["default", "modern", "old", "suites", "only-1.3", "only-1.2"],
)
def test_listeners_follow_the_policy(
    policy: Mapping[str, str],
    accepted: list[tuple[str, ...]],
    refused: list[tuple[str, ...]],
    certificate: Certificate,
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 40)
    admin = free_port()
    environment = {**policy, "ADMIN_LISTEN": f"0.0.0.0:{admin}", "ADMIN_TOKEN_FILE": str(token)}
    command = (*SERVE, "--standalone")
    with run_service(
        tmp_path, [], command=command, certificate=certificate, environment=environment
    ) as service:
        for port in (int(service.url.rpartition(":")[2]), admin):
            for options in accepted:
                assert accepts(port, *options), (port, options)
            for options in refused:
                assert not accepts(port, *options), (port, options)
        if "TLS_KRB5" in str(policy):
            assert b"OpenSSL does not offer these of TLS_CIPHER_SUITES here: TLS_KRB5" in service.output
        if "VersionTLS10" in str(policy):
            assert b"OpenSSL speaks TLS 1.2 and later at its security level" in service.output
        if not policy:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                assert spoken_by_client_of(version, service.url, certificate) == version.name


def spoken_by_client_of(version: ssl.TLSVersion, url: str, certificate: Certificate) -> str:
    """Return the version that a client of that alone and the service speak; it gets an answer."""
    context = ssl.create_default_context(cafile=certificate.ca)
    context.minimum_version = context.maximum_version = version
    host, _, port = url.removeprefix("https://").rpartition(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as stream,
    ):
        stream.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        assert b" 200 " in stream.recv(1024)
        return str(stream.version()).replace("v1.", "v1_")


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"TLS_MIN_VERSION": "TLSv1.2"}, "TLS_MIN_VERSION"),
        ({"TLS_CIPHER_SUITES": "ECDHE-RSA-AES128-GCM-SHA256"}, "IANA's names of suites"),
        ({"TLS_CIPHER_SUITES": GCM, "TLS_LEGACY_CIPHERS": "true"}, "both name the ciphers"),
    ],
)
def test_wrong_policy_is_a_named_fault(variables: Mapping[str, str], fault: str, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "DATA_DIR": str(tmp_path), **variables}
    done = subprocess.run(
        [*SERVE, "--standalone", "--check"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert fault in done.stderr + done.stdout


SUITES_1_3 = {GCM_1_3, "TLS_AES_256_GCM_SHA384", CHACHA_1_3}
# Names of OpenSSL by those of IANA; the certificate of the test has a key of ECDSA.
SUITES_1_2 = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    GCM: "ECDHE-ECDSA-AES256-GCM-SHA384",
    CHACHA: "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
}
AEAD = {name for name in SUITES_1_2 if "CBC" not in name}
OTHERS_OF_RSA = (
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,"
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
)


def policy_of(version: str, *suites: str) -> Mapping[str, str]:
    return {"TLS_MIN_VERSION": version, "TLS_CIPHER_SUITES": ",".join(suites)}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("profile", "policy", "versions", "suites"),
    [
        ("none", {}, {"1.2", "1.3"}, SUITES_1_3 | AEAD),
        (
            "Old",
            policy_of("VersionTLS10", *sorted(SUITES_1_3), *SUITES_1_2, OTHERS_OF_RSA),
            {"1.2", "1.3"},
            SUITES_1_3 | SUITES_1_2.keys(),
        ),
        (
            "Intermediate",
            policy_of("VersionTLS12", *sorted(SUITES_1_3), *sorted(AEAD), OTHERS_OF_RSA),
            {"1.2", "1.3"},
            SUITES_1_3 | AEAD,
        ),
        ("Modern", policy_of("VersionTLS13", *sorted(SUITES_1_3)), {"1.3"}, SUITES_1_3),
    ],
    ids=["none", "old", "intermediate", "modern"],
)
def test_profiles_of_openshift(  # noqa: PLR0913, PLR0917 - a row of the table, and fixtures
    profile: str,
    policy: Mapping[str, str],
    versions: set[str],
    suites: set[str],
    certificate: Certificate,
    tmp_path: Path,
) -> None:
    """Print what each listener accepts, with the variables as assisted-service's operator sets them."""
    token = tmp_path / "token"
    token.write_text("t" * 40)
    admin = free_port()
    environment = {**policy, "ADMIN_LISTEN": f"0.0.0.0:{admin}", "ADMIN_TOKEN_FILE": str(token)}
    command = (*SERVE, "--standalone")
    at_any_level = ("-cipher", "ALL@SECLEVEL=0")
    by_version = {
        "1.0": ("-tls1", *at_any_level),
        "1.1": ("-tls1_1", *at_any_level),
        "1.2": ("-tls1_2",),
        "1.3": ("-tls1_3",),
    }
    by_suite = {name: ("-tls1_3", "-ciphersuites", name) for name in SUITES_1_3}
    by_suite |= {name: ("-tls1_2", "-cipher", openssl) for name, openssl in SUITES_1_2.items()}
    with run_service(
        tmp_path, [], command=command, certificate=certificate, environment=environment
    ) as service:
        for listener, port in (("images", int(service.url.rpartition(":")[2])), ("admin", admin)):
            accepted = [version for version, options in by_version.items() if accepts(port, *options)]
            found = [name for name, options in sorted(by_suite.items()) if accepts(port, *options)]
            print(f"| {profile} | {listener} | {', '.join(accepted)} | {', '.join(found)} |")  # noqa: T201
            assert (set(accepted), set(found)) == (versions, suites)


@pytest.mark.soak
def test_listener_of_jobs_follows_the_policy(certificate: Certificate, tmp_path: Path) -> None:
    files = {"HTTPS_CERT_FILE": str(certificate.chain), "HTTPS_KEY_FILE": str(certificate.key)}
    port = free_port()
    listen = f"unix:{{DATA_DIR}}/jobs.sock,0.0.0.0:{port}"
    policy = policy_of("VersionTLS13", CHACHA_1_3)
    with running_with_tenants(tmp_path, JOBS_LISTEN=listen, **files, **policy):
        assert accepts(port, "-tls1_3", "-ciphersuites", CHACHA_1_3)
        assert not accepts(port, "-tls1_3", "-ciphersuites", GCM_1_3)
        assert not accepts(port, "-tls1_2")

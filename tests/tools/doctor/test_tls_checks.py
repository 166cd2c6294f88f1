"""The checks of TLS, against real servers."""

from __future__ import annotations

import socket
import ssl
import warnings
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import pytest
import trustme

from image_service.core.errors import ConfigurationError
from image_service.tools.doctor.outcomes import CheckStatus
from image_service.tools.doctor.rules import ClientProfile
from image_service.tools.doctor.target import ImageUrl
from image_service.tools.doctor.tls_checks import check_tls, judge_versions, trusting_context
from tests.tools.doctor.image_server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.tools.doctor.outcomes import CheckOutcome

IMAGE = b"image"
LOOPBACK = "127.0.0.1"


@attrs.frozen
class Authority:
    """A CA, and its PEM file."""

    ca: trustme.CA
    file: Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(trustme.CA(), tmp_path_factory.mktemp("ca") / "ca.pem")
    made.ca.cert_pem.write_to_path(str(made.file))
    return made


def server_context(leaf: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    return context


def check(
    context: ssl.SSLContext,
    authority: Path | None,
    profile: ClientProfile | None = None,
    host: str = LOOPBACK,
) -> dict[str, CheckOutcome]:
    with serving(IMAGE, context=context) as served:
        url = ImageUrl.parse(served.replace(LOOPBACK, host))
        return {outcome.name: outcome for outcome in check_tls(url, profile, trusting_context(authority))}


def complaints(outcomes: dict[str, CheckOutcome]) -> dict[str, str]:
    return {
        name: str(outcome.status)
        for name, outcome in outcomes.items()
        if outcome.status is not CheckStatus.OK
    }


def test_rsa_certificate_of_the_address_gets_no_complaint(authority: Authority) -> None:
    leaf = authority.ca.issue_cert(LOOPBACK, key_type=trustme.KeyType.RSA)
    context = server_context(leaf)
    context.set_ciphers("ECDHE+AES:@SECLEVEL=0")
    assert complaints(check(context, authority.file)) == {}


def test_forward_secret_aead_ciphers_alone_are_a_warning(authority: Authority) -> None:
    context = server_context(authority.ca.issue_cert(LOOPBACK, key_type=trustme.KeyType.RSA))
    context.set_ciphers("ECDHE+AESGCM")
    outcomes = check(context, authority.file)
    assert complaints(outcomes) == {"tls-ciphers": "warn"}
    assert "ECDHE with AES-GCM only" in outcomes["tls-ciphers"].detail


def test_certificate_of_an_unknown_authority_is_a_warning(authority: Authority) -> None:
    context = server_context(authority.ca.issue_cert(LOOPBACK))
    assert check(context, None)["certificate-chain"].status is CheckStatus.WARN
    assert check(context, authority.file)["certificate-chain"].status is CheckStatus.OK


@pytest.mark.parametrize("names", [("example.com",), ("localhost",), ("10.0.0.1",)], ids=str)
def test_certificate_of_another_host_is_a_failure(authority: Authority, names: tuple[str, ...]) -> None:
    outcome = check(server_context(authority.ca.issue_cert(*names)), authority.file)["certificate-name"]
    assert outcome.status is CheckStatus.FAIL
    assert names[0] in outcome.detail


def test_certificate_without_alternative_names_is_a_failure(authority: Authority) -> None:
    leaf = authority.ca.issue_cert(common_name=LOOPBACK)
    outcome = check(server_context(leaf), authority.file)["certificate-name"]
    assert outcome.status is CheckStatus.FAIL
    assert "no name at all" in outcome.detail


def test_name_is_found_and_a_wildcard_is_a_warning(authority: Authority) -> None:
    context = server_context(authority.ca.issue_cert("localhost"))
    assert check(context, authority.file, host="localhost")["certificate-name"].status is CheckStatus.OK
    with local_name("a.localhost.test"):
        context = server_context(authority.ca.issue_cert("*.localhost.test"))
        outcome = check(context, authority.file, host="a.localhost.test")["certificate-name"]
    assert outcome.status is CheckStatus.WARN


@contextmanager
def local_name(name: str) -> Iterator[None]:
    """Let a name resolve to loopback: no real one is matched by a wildcard and needs no DNS."""
    original = socket.getaddrinfo

    def resolve(host: str, *arguments: object, **options: object) -> object:
        return original(LOOPBACK if host == name else host, *arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", resolve)
        yield


@pytest.mark.parametrize(
    ("begin", "end", "status"),
    [(-90, -1, "fail"), (1, 90, "fail"), (-1, 7, "warn"), (-1, 90, "ok")],
    ids=["expired", "not valid yet", "ends soon", "valid"],
)
def test_dates_of_the_certificate_are_judged(authority: Authority, begin: int, end: int, status: str) -> None:
    now = datetime.now(UTC)
    leaf = authority.ca.issue_cert(
        LOOPBACK, not_before=now + timedelta(days=begin), not_after=now + timedelta(days=end)
    )
    outcomes = check(server_context(leaf), authority.file)
    assert str(outcomes["certificate-dates"].status) == status
    assert str(outcomes["certificate-chain"].status) == ("fail" if status == "fail" else "ok")


def test_ecdsa_key_is_a_warning_that_names_the_ipxe_that_takes_it(authority: Authority) -> None:
    context = server_context(authority.ca.issue_cert(LOOPBACK, key_type=trustme.KeyType.ECDSA))
    outcomes = {
        profile: check(context, authority.file, profile)["certificate-key"]
        for profile in (None, ClientProfile.IPXE, ClientProfile.QEMU)
    }
    statuses = {profile: str(outcome.status) for profile, outcome in outcomes.items()}
    assert statuses == {None: "warn", ClientProfile.IPXE: "warn", ClientProfile.QEMU: "skip"}
    assert "before 2.0" in str(outcomes[None])
    assert "2.0 has it" in str(outcomes[ClientProfile.IPXE])


def test_server_of_tls_1_3_alone_is_a_warning(authority: Authority) -> None:
    context = server_context(authority.ca.issue_cert(LOOPBACK))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    outcomes = check(context, authority.file)
    assert outcomes["tls-versions"].status is CheckStatus.WARN
    assert outcomes["tls-ciphers"].status is CheckStatus.SKIP


def test_server_of_tls_1_0_alone_is_a_failure_and_can_still_be_checked(authority: Authority) -> None:
    context = server_context(authority.ca.issue_cert(LOOPBACK, key_type=trustme.KeyType.RSA))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    outcomes = check(context, authority.file)
    assert outcomes["tls"].status is CheckStatus.OK
    assert outcomes["certificate-chain"].status is CheckStatus.OK
    assert outcomes["tls-versions"].status is CheckStatus.FAIL
    assert "TLS 1.0 only" in outcomes["tls-versions"].detail


def test_plain_server_speaks_no_tls() -> None:
    with serving(IMAGE) as served:
        url = ImageUrl.parse(served.replace("http://", "https://"))
        outcomes = list(check_tls(url, None, trusting_context(None)))
    assert [(outcome.name, str(outcome.status)) for outcome in outcomes] == [("tls", "fail")]


def test_versions_that_this_machine_does_not_speak_are_not_known() -> None:
    outcome = judge_versions({"TLS 1.0": None, "TLS 1.1": False, "TLS 1.2": True, "TLS 1.3": False})
    assert (outcome.status, outcome.detail) == (CheckStatus.OK, "TLS 1.2 (not known: TLS 1.0)")
    nothing = judge_versions({"TLS 1.0": None, "TLS 1.1": None, "TLS 1.2": False, "TLS 1.3": False})
    assert nothing.status is CheckStatus.SKIP


def test_ca_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for name in ("empty.pem", "absent.pem"):
        with pytest.raises(ConfigurationError, match=f"{name} cannot be used"):
            trusting_context(tmp_path / name)

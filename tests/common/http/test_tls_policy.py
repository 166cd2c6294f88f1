"""Cipher suites by their IANA names."""

from __future__ import annotations

import subprocess

import pytest

from image_service.common.http.tls_policy import TlsPolicy, openssl_name, parse_suites
from tests.acceptance.clients import needs_client


def listed_by_openssl() -> dict[str, str]:
    """Return the IANA names that ``openssl ciphers`` knows, and its own."""
    command = [needs_client("openssl"), "ciphers", "-stdname", "ALL:COMPLEMENTOFALL@SECLEVEL=0"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[0]: words[2] for words in map(str.split, lines)}


def test_names_are_those_that_openssl_lists() -> None:
    names = listed_by_openssl()
    assert len(names) > 50
    older = {
        iana: own
        for iana, own in names.items()
        if iana != own and not any(text in iana for text in ("PSK", "SRP", "anon"))
    }
    assert len(older) > 40
    assert {iana: openssl_name(iana) for iana in older} == older
    for iana in names:
        parse_suites(f"{iana},TLS_AES_128_GCM_SHA256")


@pytest.mark.parametrize(
    "text", ["ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128", "aes", "TLS_ECDHE_RSA_WITH_AES_512_GCM_SHA256"]
)
def test_other_names_are_faults(text: str) -> None:
    with pytest.raises(ValueError, match="IANA's names"):
        parse_suites(f"TLS_AES_128_GCM_SHA256,{text}")


def test_list_without_any_suite_of_openssl_is_a_fault() -> None:
    with pytest.raises(ValueError, match="and has none"):
        parse_suites("TLS_RSA_WITH_NULL_MD5, TLS_KRB5_WITH_RC4_128_SHA")


def test_suites_that_openssl_lacks_are_missing() -> None:
    policy = TlsPolicy(suites=parse_suites("TLS_KRB5_WITH_RC4_128_SHA,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"))
    assert policy.missing == ("TLS_KRB5_WITH_RC4_128_SHA",)
    assert policy.ciphers_1_2 == ("ECDHE-RSA-AES128-GCM-SHA256",)
    assert policy.suites_1_3 == ()

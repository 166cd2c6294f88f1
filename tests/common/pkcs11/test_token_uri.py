"""URIs of keys of PKCS#11 tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from image_service.common.pkcs11.token_uri import TokenUri, parse_token_uri

QUERY = "?module-path=/m.so&pin-source=/pin"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"pkcs11:token=a;object=b{QUERY}", ("a", None, "b", None)),
        (f"pkcs11:id=%01%ff;serial=0a;type=private{QUERY}", (None, "0a", None, b"\x01\xff")),
        (
            "pkcs11:object=a%3Bb%20c%C3%A4?pin-source=file:/pin&module-path=/m.so",
            (None, None, "a;b c\u00e4", None),
        ),
    ],
)
def test_a_key_is_named(text: str, names: tuple[str | None, str | None, str | None, bytes | None]) -> None:
    assert parse_token_uri(text) == TokenUri(Path("/m.so"), Path("/pin"), *names)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("/etc/key.pem", "must be pkcs11:token=NAME"),
        ("pkcs11:", "has no module-path and no pin-source"),
        ("pkcs11:object=a?module-path=/m.so", "has no pin-source in its query"),
        (f"pkcs11:token=a{QUERY}", "must name the key by object or id"),
        (f"pkcs11:object=a;type=cert{QUERY}", "must name a private key"),
        (f"pkcs11:object=a;object=b{QUERY}", "has object twice"),
        (f"pkcs11:object=a;slot-id=1{QUERY}", "unknown attribute in its path: there may be id"),
        (f"pkcs11:object=a{QUERY}&module-name=m", "unknown attribute in its query: there may be mod"),
        (
            "pkcs11:object=a?module-path=m.so&pin-source=/pin",
            "m.so in its query, which is not an abs",
        ),
        (
            "pkcs11:object=a?module-path=/m.so&pin-source=pin",
            "pin in its query, which is not an abs",
        ),
    ],
)
def test_faults_are_named(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_token_uri(text)


def test_a_pin_in_the_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="pin-value") as caught:
        parse_token_uri("pkcs11:object=a?module-path=/m.so&pin-value=98765")
    assert "98765" not in str(caught.value)


def test_the_pin_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "pin"
    uri = parse_token_uri(f"pkcs11:object=a?module-path=/m.so&pin-source={file}")
    for content, pin in (("1234\n", "1234"), ("12 34", "12 34"), ("1\n2\n", "1"), ("", "")):
        file.write_text(content)
        assert uri.read_pin() == pin

"""Certificates and keys in PEM files: valid pairs, every sort of wrong file, and the end of validity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import attrs
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from image_service.common.files.certificates import describe_end, read_not_after, read_private_key
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

END = datetime(2027, 3, 14, 15, 9, 26, tzinfo=UTC)
AUTHORITY = trustme.CA()
DAMAGED = b"-----BEGIN %s-----\nAAAA\n-----END %s-----\n"


@attrs.frozen
class Files:
    """The files of a key and of a certificate."""

    key: Path
    certificate: Path

    def fault(self) -> str:
        """Return why the key cannot be used."""
        with pytest.raises(ConfigurationError) as raised:
            read_private_key(self.key, self.certificate)
        return raised.value.detail

    def exchange(self) -> Files:
        return Files(self.certificate, self.key)


@pytest.fixture(params=trustme.KeyType)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    leaf = AUTHORITY.issue_cert("localhost", not_after=END, key_type=request.param)
    made = Files(tmp_path / "tls.key", tmp_path / "tls.crt")
    made.key.write_bytes(leaf.private_key_pem.bytes())
    chain = [*leaf.cert_chain_pems, AUTHORITY.cert_pem]
    made.certificate.write_bytes(b"".join(pem.bytes() for pem in chain))
    return made


def test_end_is_that_of_the_first_certificate(files: Files) -> None:
    assert read_not_after(files.certificate) == END


def test_key_of_the_certificate_is_returned(files: Files) -> None:
    key = read_private_key(files.key, files.certificate)
    assert key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) == load_pem_private_key(
        files.key.read_bytes(), None
    ).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_one_file_may_contain_both(files: Files) -> None:
    files.key.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    read_private_key(files.key, files.key)
    assert read_not_after(files.key) == END


def test_key_of_another_certificate_is_no_pair(files: Files) -> None:
    files.key.write_bytes(AUTHORITY.issue_cert("localhost").private_key_pem.bytes())
    assert files.fault() == (
        f"{files.certificate} and {files.key} are not a pair: the certificate is for another key"
    )


def test_exchanged_files_are_named_as_such(files: Files) -> None:
    assert files.exchange().fault() == (
        f"the key file {files.certificate} contains a certificate, and the certificate file {files.key}"
        " a private key: exchange them"
    )


def test_encrypted_key_needs_a_passphrase(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    key = load_pem_private_key(files.key.read_bytes(), None)
    for layout in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        files.key.write_bytes(key.private_bytes(Encoding.PEM, layout, BestAvailableEncryption(b"word")))
        assert files.fault().startswith(f"the key file {files.key} needs a passphrase")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the key file {} contains no private key in PEM format"),
        (b"no key", "the key file {} contains no private key in PEM format"),
        (DAMAGED % (b"PRIVATE KEY", b"PRIVATE KEY"), "the private key in {} is damaged"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA", "the private key in {} is damaged"),
        (None, "{}: No such file or directory"),
    ],
)
def test_file_without_key_is_named(files: Files, content: bytes | None, fault: str) -> None:
    write(files.key, content)
    assert files.fault().startswith(fault.format(files.key))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the certificate file {} contains no certificate in PEM format"),
        (b"\xff\x00", "the certificate file {} contains no certificate in PEM format"),
        (DAMAGED % (b"CERTIFICATE", b"CERTIFICATE"), "the first certificate in {} is damaged"),
        (b"-----BEGIN CERTIFICATE-----\n", "the first certificate in {} is damaged"),
        (None, "{}: No such file or directory"),
    ],
)
def test_file_without_certificate_is_named(files: Files, content: bytes | None, fault: str) -> None:
    write(files.certificate, content)
    expected = fault.format(files.certificate)
    assert files.fault() == expected
    with pytest.raises(ConfigurationError) as raised:
        read_not_after(files.certificate)
    assert raised.value.detail == expected


def write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("before_end", "expected"),
    [
        (timedelta(days=14, seconds=1), None),
        (
            timedelta(days=14),
            "the certificate {} expires in 14 days, on 2027-03-14 15:09 UTC: renew it",
        ),
        (
            timedelta(days=1, hours=3),
            "the certificate {} expires in 1 day, on 2027-03-14 15:09 UTC: renew it",
        ),
        (
            timedelta(0),
            "the certificate {} expires in less than a day, on 2027-03-14 15:09 UTC: renew it",
        ),
        (
            timedelta(seconds=-1),
            "the certificate {} expired on 2027-03-14 15:09 UTC: clients reject it; renew it",
        ),
    ],
)
def test_end_is_reported_from_14_days_before(
    tmp_path: Path, before_end: timedelta, expected: str | None
) -> None:
    now = (END - before_end).astimezone(timezone(timedelta(hours=9)))
    assert describe_end(tmp_path, END, now) == (expected and expected.format(tmp_path))

from __future__ import annotations

import base64
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.openpgp import read_key_ring
from tests.acceptance.clients import needs_client, run_client

if TYPE_CHECKING:
    from pathlib import Path

LEGACY, PRESENT = b"\x99\x01\x0d key", b"\xc6\x33 key"  # headers of RFC 9580 sections 4.2.2 and 4.2.1


def armored(keys: bytes) -> bytes:
    body = base64.encodebytes(keys)
    return b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n" + body + b"-----END PGP PUBLIC KEY BLOCK-----\n"


@pytest.mark.parametrize("keys", [LEGACY, PRESENT, b"\0\0\0\x20\x01\x01\0\2KBXf and keys"])
def test_binary_key_ring_is_returned_as_it_is(keys: bytes) -> None:
    assert read_key_ring(keys) == keys


def test_armor_is_removed_from_each_block() -> None:
    assert read_key_ring(b"comment\n" + armored(LEGACY) + armored(PRESENT)) == LEGACY + PRESENT


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"root:x:0:0:root:/root:/bin/bash\n",
        b"\x95\x03 a secret key in a packet of the legacy format",
        b"\xc5\x58 a secret key",
        b"\xc2\x75 a signature",
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ",
        armored(b"no packet"),
    ],
)
def test_other_content_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError, match="does not begin with an OpenPGP public key; gpg --export writes"):
        read_key_ring(content)


def test_damaged_armor_is_refused() -> None:
    with pytest.raises(FormatError, match="the ASCII armor is damaged"):
        read_key_ring(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n")


@given(st.binary(max_size=100))
def test_any_content_is_returned_or_refused(content: bytes) -> None:
    with suppress(FormatError):
        assert read_key_ring(content) == content


def test_files_of_gpg_are_read(tmp_path: Path) -> None:
    """A key ring of each form, and a secret key, made by GnuPG."""
    needs_client("gpg")
    tmp_path.chmod(0o700)
    gpg = ("gpg", "--homedir", str(tmp_path), "--batch", "--quiet", "--pinentry-mode", "loopback")
    run_client(*gpg, "--passphrase", "", "--quick-gen-key", "one@example.com", "ed25519", "sign", "never")
    binary, text = run_client(*gpg, "--export"), run_client(*gpg, "--export", "--armor")
    assert read_key_ring(text) == read_key_ring(binary) == binary
    box = (tmp_path / "pubring.kbx").read_bytes()
    assert read_key_ring(box) == box
    with pytest.raises(FormatError):
        read_key_ring(run_client(*gpg, "--passphrase", "", "--export-secret-keys"))
    run_client("gpgconf", "--homedir", str(tmp_path), "--kill", "all")

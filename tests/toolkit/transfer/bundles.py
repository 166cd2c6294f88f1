"""Image bundles of tests: made by GNU tar, gzip and openssl, with the faults that a test asks for."""

from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import needs_client, run_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "00112233445566778899aabbccddeeff"
VECTOR = "0123456789abcdeffedcba9876543210"
PART_BYTES = 100_000


@attrs.frozen
class RsaKey:
    """A key and its certificate, both in PEM."""

    key: Path
    certificate: Path

    @classmethod
    def make(cls, directory: Path, name: str) -> RsaKey:
        """Make a key of 2048 bits."""
        made = cls(directory / f"{name}.key", directory / f"{name}.crt")
        run_client(
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", made.key, "-out", made.certificate,
        )  # fmt: skip
        return made

    def encrypt(self, text: bytes) -> str:
        """Return a text encrypted for this key, hexadecimal."""
        return _pipe(text, "pkeyutl", "-encrypt", "-certin", "-inkey", self.certificate).hex()

    def sign(self, text: bytes) -> str:
        """Return the RSA-SHA1 signature of a text, hexadecimal."""
        return _pipe(text, "dgst", "-sha1", "-sign", self.key).hex()


def _pipe(data: bytes, *arguments: str | Path) -> bytes:
    command = [needs_client("openssl"), *map(str, arguments)]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def sha1_of(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def tar_of(image: Path, *options: str) -> bytes:
    """Return GNU tar's archive of a file."""
    return run_client("tar", *options, "--sparse", "-C", image.parent, "-cf", "-", image.name)


def gzip(data: bytes) -> bytes:
    return subprocess.run(
        [needs_client("gzip"), "-nc"], input=data, stdout=subprocess.PIPE, check=True
    ).stdout


def encrypt(data: bytes, *options: str) -> bytes:
    return _pipe(data, "enc", "-aes-128-cbc", "-K", KEY, "-iv", VECTOR, *options)


@attrs.frozen
class BundleMaker:
    """Makes a bundle step by step; a fault replaces a step.

    Args:
        user: signs.
        service: the other one that can decrypt.
        key_text: what is encrypted for both.
        compress: tar to gzip.
        encrypt: gzip to parts.
        change_manifest: after it was signed.
        change_signed: before.
    """

    user: RsaKey
    service: RsaKey
    key_text: bytes = KEY.encode()
    compress: Callable[[bytes], bytes] = gzip
    encrypt: Callable[[bytes], bytes] = encrypt
    change_manifest: Callable[[str], str] = str
    change_signed: Callable[[str], str] = str

    def make(self, directory: Path, tar: bytes, size: int) -> Path:
        """Write parts and manifest; return the manifest's path."""
        directory.mkdir(exist_ok=True)
        bundle = self.encrypt(self.compress(tar))
        parts = [bundle[at : at + PART_BYTES] for at in range(0, len(bundle), PART_BYTES)]
        for index, part in enumerate(parts):
            (directory / f"image.part.{index:02}").write_bytes(part)
        described = "".join(
            f'<part index="{index}"><filename>image.part.{index:02}</filename>'
            f'<digest algorithm="SHA1">{sha1_of(part)}</digest></part>'
            for index, part in enumerate(parts)
        )
        keys = "".join(
            f'<{owner}_encrypted_key algorithm="AES-128-CBC">'
            f"{key.encrypt(self.key_text)}</{owner}_encrypted_key>"
            f"<{owner}_encrypted_iv>{key.encrypt(VECTOR.encode())}</{owner}_encrypted_iv>"
            for owner, key in (("ec2", self.service), ("user", self.user))
        )
        machine = "<machine_configuration><architecture>x86_64</architecture></machine_configuration>"
        image = (
            "<image><name>image</name><user>1</user><type>machine</type>"
            f'<digest algorithm="SHA1">{sha1_of(tar)}</digest>'
            f"<size>{size}</size><bundled_size>{len(bundle)}</bundled_size>{keys}"
            f'<parts count="{len(parts)}">{described}</parts></image>'
        )
        signed = self.change_signed(machine + image)
        signature = self.user.sign(signed.encode())
        text = (
            "<?xml version='1.0'?><manifest><version>2007-10-10</version>"
            "<bundler><name>test</name><version>1</version><release>1</release></bundler>"
            f"{signed}<signature>{signature}</signature></manifest>"
        )
        path = directory / "image.manifest.xml"
        path.write_text(self.change_manifest(text))
        return path

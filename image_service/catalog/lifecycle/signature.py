"""Detached OpenPGP signatures, checked by gpgv: it has one task, no network, and no key ring of its own."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from image_service.concurrency.sandbox import run_sandboxed
from image_service.errors import BaseImageError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.concurrency.interruption import Interruption
    from image_service.files.base_file import BaseFile

MAX_SIGNATURE_BYTES = 64 * 1024  # one of a dozen keys has some KiB
_MAX_TOLD_BYTES = 64 * 1024
# Encodings of RFC 9580 section 6.2; the checksum behind the data is optional.
_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[ -~]+\r?\n)*\r?\n"
    rb"([A-Za-z0-9+/=\s]+?)(?:\r?\n=[A-Za-z0-9+/]{4})?\s*-----END"
)


@attrs.frozen
class KeyRing:
    """Whose signatures count.

    Args:
        keys: as gpgv reads them.
    """

    keys: bytes = attrs.field(repr=False)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """Read a file of public keys, binary or in ASCII armour.

        Raises:
            ConfigurationError: it cannot be read, or its armour is damaged.
        """
        try:
            content = path.read_bytes()
            blocks = _ARMOR.findall(content)
            return cls(b"".join(base64.b64decode(b"".join(block.split())) for block in blocks) or content)
        except (OSError, binascii.Error) as error:
            raise ConfigurationError(f"SIGNING_KEYS cannot be read: {error}") from None

    def proof(self, sha256: str, signature: bytes) -> str:
        """Give a digest by which it is remembered that a signature was good for a file.

        Args:
            sha256: of the file.
            signature: as it was checked.

        Returns:
            lower-case hex; another one for other keys.
        """
        digest = hashlib.sha256(sha256.encode())
        for part in (signature, self.keys):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()

    def verify(self, file: BaseFile, signature: bytes, interruption: Interruption) -> None:
        """Check a signature.

        Args:
            file: what was signed.
            signature: detached, binary or in ASCII armour.
            interruption: ends it from another thread.

        Raises:
            BaseImageError: it is not good, or by none of the keys; says what gpgv says.
            Unavailable: gpgv is not installed.
            Interrupted: the service stops.
        """
        with (
            file.hold(),
            _in_memory(self.keys) as keys,
            _in_memory(signature) as detached,
            _in_memory() as told,
        ):
            paths = [f"/proc/self/fd/{descriptor}" for descriptor in (keys, detached, file.descriptor)]
            options = ["--homedir", "/nonexistent", "--status-fd", "1", "--keyring"]
            status = run_sandboxed(
                ["gpgv", *options, *paths],
                interruption,
                descriptors=[keys, detached, file.descriptor],
                stdout=told,
            )
            lines = b"\n" + os.pread(told, _MAX_TOLD_BYTES, 0)
        # Some of several signatures may be by keys that are not ours: one good one is enough.
        good = b"\n[GNUPG:] GOODSIG " in lines and b"\n[GNUPG:] BADSIG " not in lines
        if not good:
            raise BaseImageError(f"its OpenPGP signature is not good: gpgv ended with {status}{_why(lines)}")


@contextmanager
def _in_memory(content: bytes = b"") -> Iterator[int]:
    """Give a descriptor of something that need not be on a disk, which may be read-only."""
    with open(os.memfd_create("gpgv"), "w+b", buffering=0) as file:  # noqa: PTH123 - it has no path
        file.write(content)
        yield file.fileno()


def _why(told: bytes) -> str:
    """What gpgv said, of which only keywords and key identifiers are passed on (doc/DETAILS of GnuPG)."""
    lines = re.findall(
        rb"\n\[GNUPG:\] (BADSIG|ERRSIG|NO_PUBKEY|EXPKEYSIG|EXPSIG|REVKEYSIG|NODATA) (\w+)", told
    )
    return "".join(f", {keyword.decode()} {key.decode()}" for keyword, key in lines)

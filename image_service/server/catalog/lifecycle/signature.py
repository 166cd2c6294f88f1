"""Detached OpenPGP signatures, verified by gpgv: a small program without network access or key ring."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.local_file import LocalFile
from image_service.common.programs.interruptible import run_interruptibly
from image_service.core.errors import BaseImageError, ConfigurationError, FormatError, Unavailable
from image_service.core.formats.openpgp import read_key_ring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.base_file import BaseFile

MAX_SIGNATURE_BYTES = 64 * 1024  # signatures by a dozen keys take some KiB
_MAX_STATUS_BYTES = 64 * 1024
_REASON = re.compile(rb"\n\[GNUPG:\] (BADSIG|ERRSIG|NO_PUBKEY|EXPKEYSIG|EXPSIG|REVKEYSIG|NODATA) (\w+)")


@attrs.frozen
class KeyRing:
    """The public keys whose signatures are accepted, as gpgv reads them."""

    keys: bytes = attrs.field(repr=False)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """Read a file of public keys, binary or in ASCII armor.

        Raises:
            ConfigurationError: it cannot be read, or is not a key ring.
        """
        try:
            return cls(read_key_ring(path.read_bytes()))
        except OSError as error:
            raise ConfigurationError(f"SIGNING_KEYS cannot be read: {error}") from None
        except FormatError as error:
            raise ConfigurationError(f"SIGNING_KEYS {path} is not a key ring: {error.detail}") from None

    def proof(self, sha256: str, signature: bytes) -> str:
        """Return a digest of a file's SHA-256, its signature and these keys, stored once verified."""
        digest = hashlib.sha256(sha256.encode())
        for part in (signature, self.keys):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()

    def verify(self, file: BaseFile, signature: bytes, interruption: Interruption) -> None:
        """Verify the detached signature of a file, binary or in ASCII armor.

        Raises:
            BaseImageError: the signature is bad, or by none of the keys; contains gpgv's reason.
            Unavailable: gpgv is not installed.
            Interrupted: the service stops.
        """
        with file.hold():
            self.verify_descriptor(file.descriptor, signature, interruption)

    def verify_descriptor(self, descriptor: int, signature: bytes, interruption: Interruption) -> None:
        """Verify the detached signature of what an open file, or a pipe, has; see `verify`."""
        with _in_memory(self.keys) as keys, _in_memory(signature) as detached:
            paths = [f"/proc/self/fd/{each}" for each in (keys, detached, descriptor)]
            options = ["--homedir", "/nonexistent", "--status-fd", "1", "--keyring"]
            result = run_interruptibly(
                ["gpgv", *options, *paths], interruption, descriptors=[keys, detached, descriptor]
            )
        lines = b"\n" + result.output[:_MAX_STATUS_BYTES]
        if b"\n[GNUPG:] " not in lines and "gpgv: " not in result.messages:  # the sandbox did not start it
            reason = result.last_message[:200] or "no message"
            raise Unavailable(f"gpgv could not be run: status {result.status}: {reason}")
        # One good signature is enough: others may be by keys that are not in the ring.
        if b"\n[GNUPG:] GOODSIG " not in lines or b"\n[GNUPG:] BADSIG " in lines:
            # Keywords and key identifiers (doc/DETAILS of GnuPG), and nothing else of the output.
            reasons = [f"{keyword.decode()} {key.decode()}" for keyword, key in _REASON.findall(lines)]
            reason = ", ".join([f"gpgv exited with status {result.status}", *reasons])
            raise BaseImageError(f"its OpenPGP signature is not valid: {reason}")

    def verify_bytes(self, content: bytes, signature: bytes, interruption: Interruption) -> None:
        """Verify the detached signature of a file in memory; see `verify`."""
        with _in_memory(content) as descriptor:
            self.verify(LocalFile(descriptor, len(content), "memory"), signature, interruption)


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """Yield the descriptor of a file in memory: the disk may be read-only."""
    with open(os.memfd_create("gpgv"), "w+b", buffering=0) as file:  # noqa: PTH123 - it has no path
        file.write(content)
        yield file.fileno()

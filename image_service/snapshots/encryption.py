"""Encryption of snapshots: the repository alone reveals neither what it stores nor for whom.

Keys and digests are derived from the instance's secret, the key of a payload also from the credentials that
may read it: with the secret as well, what was asked for with credentials stays sealed.

    sealed payload    offset  bytes
    format                 0      1   1
    nonce                  1     12   random (NIST SP 800-38D section 8.2.2)
    ciphertext            13          AES-256-GCM, then its tag of 16 bytes; key and generation are
                                      authenticated with it: a row is of no use in another's place
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from twisted.logger import Logger

from image_service.concurrency.file_locks import directory_lock
from image_service.errors import SnapshotUnreadable, StoreFailed
from image_service.files.atomic import publish_file
from image_service.files.private_files import open_no_follow, restrict_to_owner
from image_service.images.reference import CredentialScheme
from image_service.snapshots.repository import Owner

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.images.reference import Credentials

SECRET_FILE = "snapshot.secret"  # noqa: S105 - its name
SECRET_BYTES = 32
_KEY_BYTES = 32
# Part of stored digests and keys: these never change.
_SCHEMES = {
    CredentialScheme.API_KEY: b"api_key",
    CredentialScheme.IMAGE_TOKEN: b"Image-Token",
    CredentialScheme.AUTHORIZATION: b"Authorization",
}
_FORMAT = b"\x01"
_NONCE_BYTES = 12
_HEAD_BYTES = len(_FORMAT) + _NONCE_BYTES
_log = Logger()


@attrs.frozen
class SnapshotCipher:
    """Derives digests and keys. Nothing here blocks; sealing takes about a ms per MiB.

    Args:
        secret: of the instance, `SECRET_BYTES`; shared by all processes that share a repository.
    """

    _secret: bytes = attrs.field(repr=False)

    def key_of(self, infra_env_id: str, question: str, credentials: Credentials | None) -> bytes:
        """Return the 32 bytes that stand for what is asked about an infra-env, and by whom."""
        return self._digest(b"question", infra_env_id.encode(), question.encode(), *_fields(credentials))

    def reader_key_of(self, address: str, credentials: Credentials | None, ref: str) -> bytes:
        """Return the 32 bytes that stand for a client reading an image."""
        return self._digest(b"reader", address.encode(), ref.encode(), *_fields(credentials))

    def owner_of(self, infra_env_id: str, credentials: Credentials | None) -> Owner:
        """Return what stands for an infra-env and for those who may read it."""
        return Owner(
            self._digest(b"infra-env", infra_env_id.encode()),
            self._digest(b"credentials", infra_env_id.encode(), *_fields(credentials)),
        )

    def seal(self, key: bytes, generation: int, credentials: Credentials | None, payload: bytes) -> bytes:
        """Encrypt a payload, which becomes 29 bytes longer."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        ciphertext = self._cipher(credentials).encrypt(nonce, payload, _pack(key, b"%d" % generation))
        return b"".join((_FORMAT, nonce, ciphertext))

    def unseal(self, key: bytes, generation: int, credentials: Credentials | None, sealed: bytes) -> bytes:
        """Decrypt what ``seal`` returned for the same key, generation and credentials.

        Raises:
            SnapshotUnreadable: any of these, the secret or the sealed bytes differ.
        """
        if not sealed.startswith(_FORMAT):
            raise SnapshotUnreadable(
                "a stored snapshot is sealed in a format that this release does not know"
            )
        nonce, ciphertext = sealed[len(_FORMAT) : _HEAD_BYTES], memoryview(sealed)[_HEAD_BYTES:]
        try:
            return self._cipher(credentials).decrypt(nonce, ciphertext, _pack(key, b"%d" % generation))
        except (InvalidTag, ValueError):  # the latter of a nonce that is too short
            raise SnapshotUnreadable(
                f"a stored snapshot of {len(sealed)} bytes does not open: damaged, or sealed for others"
            ) from None

    def _digest(self, *fields: bytes) -> bytes:
        return hmac.digest(self._secret, _pack(*fields), "sha256")

    def _cipher(self, credentials: Credentials | None) -> AESGCM:
        """HKDF (RFC 5869) of the credentials, which alone may be guessable, salted with the secret."""
        derivation = HKDF(SHA256(), _KEY_BYTES, salt=self._secret, info=b"snapshot")
        return AESGCM(derivation.derive(_pack(*_fields(credentials))))


def _fields(credentials: Credentials | None) -> tuple[bytes, ...]:
    if credentials is None:
        return ()
    return _SCHEMES[credentials.scheme], credentials.secret.encode()


def _pack(*fields: bytes) -> bytes:
    """Fields as one, each behind its length, so that no two sequences of them give the same."""
    return b"".join(b"%d:%b" % (len(field), field) for field in fields)


def load_or_create_secret(data_dir: Path) -> bytes:
    """Return the secret; the first process creates it. Waits for the disk.

    A file of another size is no secret: it is replaced, and what was sealed with it is lost.

    Args:
        data_dir: an existing directory; the file in it is for its owner alone.

    Raises:
        StoreFailed: it can be neither read nor written.
    """
    path = data_dir / SECRET_FILE
    try:
        with directory_lock(data_dir):
            return _load_secret(path) or _create_secret(path)
    except OSError as error:
        raise StoreFailed(f"{path} can be neither read nor written: {error.strerror}") from error


def _load_secret(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        restrict_to_owner(path)
        with os.fdopen(open_no_follow(path, os.O_RDONLY), "rb") as file:
            secret = file.read()
        if len(secret) == SECRET_BYTES:
            return secret
        _log.warn(
            "{path} has {size} bytes instead of {expected}: creating a new secret; stored snapshots are lost",
            path=str(path),
            size=len(secret),
            expected=SECRET_BYTES,
        )
    return None


def _create_secret(path: Path) -> bytes:
    """Write it under another name first: a crash leaves no part of a secret in its place."""
    secret = secrets.token_bytes(SECRET_BYTES)
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)  # a crash's
    with os.fdopen(open_no_follow(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(secret)
    publish_file(temporary, path)
    return secret

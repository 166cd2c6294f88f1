"""Encryption of snapshots: the repository alone reveals neither what it stores nor for whom.

Keys and digests are derived from the instance's secret, the key of a payload also from the credentials that
may read it: with the secret as well, what was asked for with credentials stays sealed.

    sealed payload    offset  bytes
    format                 0      1   1
    nonce                  1     12   random (NIST SP 800-38D section 8.2.2)
    ciphertext            13          AES-256-GCM, then its tag of 16 bytes; key and generation are
                                      authenticated with it: a row is of no use in another's place

The secret of a `SnapshotCipher` is a data key where the operator gives secrets of the instance: they encrypt
the data key alone, so that they can be rotated. It is stored in the same form, without key and generation.
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

from image_service.common.concurrency.file_locks import directory_lock
from image_service.common.files.atomic import publish_file
from image_service.common.files.private_files import open_no_follow, restrict_to_owner
from image_service.core.errors import ConfigurationError, SnapshotUnreadable, StoreFailed
from image_service.core.images.reference import CredentialScheme
from image_service.server.snapshots.storage.repository import Owner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from image_service.core.images.reference import Credentials

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
_WRAPPED_BYTES = _HEAD_BYTES + SECRET_BYTES + 16
_log = Logger()


@attrs.frozen
class Seal:
    """What stands for a question, and for the credentials that it was asked with, in the repository.

    It is derived from the instance's secret and the credentials, and contains neither, so caches may keep it.
    The same question gets an equal one again.

    Args:
        key: 32 bytes, under which the answers are stored.
        owner: of the answers.
    """

    key: bytes
    owner: Owner | None
    _encryption_key: bytes = attrs.field(repr=False)

    def seal(self, generation: int, payload: bytes) -> bytes:
        """Encrypt a payload, which becomes 29 bytes longer."""
        return encrypt(AESGCM(self._encryption_key), payload, _pack(self.key, b"%d" % generation))

    def unseal(self, generation: int, sealed: bytes) -> bytes:
        """Decrypt what ``seal`` of an equal seal returned for the same generation.

        Raises:
            SnapshotUnreadable: any of these, the secret or the sealed bytes differ.
        """
        if not sealed.startswith(_FORMAT):
            raise SnapshotUnreadable(
                "a stored snapshot is sealed in a format that this release does not know"
            )
        try:
            return decrypt(AESGCM(self._encryption_key), sealed, _pack(self.key, b"%d" % generation))
        except (InvalidTag, ValueError):  # the latter of a nonce that is too short
            raise SnapshotUnreadable(
                f"a stored snapshot of {len(sealed)} bytes does not open: damaged, or sealed for others"
            ) from None


@attrs.frozen
class SnapshotCipher:
    """Derives digests and keys. Nothing here blocks; sealing takes about a ms per MiB.

    Args:
        secret: `SECRET_BYTES`; shared by all processes that share a repository.
    """

    _secret: bytes = attrs.field(repr=False)

    def key_of(self, infra_env_id: str, question: str, credentials: Credentials | None) -> bytes:
        """Return the 32 bytes that stand for what is asked about an infra-env, and by whom."""
        return self._digest(b"question", infra_env_id.encode(), question.encode(), *_fields(credentials))

    def reader_key_of(self, address: str, credentials: Credentials | None, ref: str) -> bytes:
        """Return the 32 bytes that stand for a client reading an image."""
        return self._digest(b"reader", address.encode(), ref.encode(), *_fields(credentials))

    def seal_of(self, infra_env_id: str, question: str, credentials: Credentials | None) -> Seal:
        """Return what stands for what is asked about an infra-env, and by whom."""
        fields = _fields(credentials)
        owner = Owner(
            self._digest(b"infra-env", infra_env_id.encode()),
            self._digest(b"credentials", infra_env_id.encode(), *fields),
        )
        key = self.key_of(infra_env_id, question, credentials)
        return Seal(key, owner, self._derive(b"snapshot", *fields))

    def seal(self, key: bytes, generation: int, payload: bytes) -> bytes:
        """Encrypt a payload that all may read who have the instance's secret; see `Seal.seal`."""
        return self._seal(key).seal(generation, payload)

    def unseal(self, key: bytes, generation: int, sealed: bytes) -> bytes:
        """Decrypt what ``seal`` returned; see `Seal.unseal`."""
        return self._seal(key).unseal(generation, sealed)

    def link_digest_of(self, code: str) -> bytes:
        """Return the 32 bytes that stand for the code of a short link."""
        return self._digest(b"link", code.encode())

    def seal_link(self, code: str, payload: bytes) -> bytes:
        """Encrypt the target of a short link; its code and the secret decrypt it."""
        return encrypt(AESGCM(self._derive(b"link", code.encode())), payload, self.link_digest_of(code))

    def unseal_link(self, code: str, sealed: bytes) -> bytes:
        """Decrypt what ``seal_link`` returned for the same code.

        Raises:
            SnapshotUnreadable: the code, the secret or the sealed bytes differ.
        """
        try:
            return decrypt(AESGCM(self._derive(b"link", code.encode())), sealed, self.link_digest_of(code))
        except (InvalidTag, ValueError):
            raise SnapshotUnreadable(f"a stored link of {len(sealed)} bytes cannot be decrypted") from None

    def _digest(self, *fields: bytes) -> bytes:
        return hmac.digest(self._secret, _pack(*fields), "sha256")

    def _seal(self, key: bytes) -> Seal:
        return Seal(key, None, self._derive(b"snapshot"))

    def _derive(self, purpose: bytes, *fields: bytes) -> bytes:
        """HKDF (RFC 5869) of the fields, which alone may be guessable, salted with the secret."""
        return HKDF(SHA256(), _KEY_BYTES, salt=self._secret, info=purpose).derive(_pack(*fields))


def _fields(credentials: Credentials | None) -> tuple[bytes, ...]:
    if credentials is None:
        return ()
    return _SCHEMES[credentials.scheme], credentials.secret.encode()


def _pack(*fields: bytes) -> bytes:
    """Fields as one, each behind its length, so that no two sequences of them give the same."""
    return b"".join(b"%d:%b" % (len(field), field) for field in fields)


def encrypt(cipher: AESGCM, clear: bytes, context: bytes) -> bytes:
    """Return format, nonce and ciphertext; the context is authenticated with it."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return b"".join((_FORMAT, nonce, cipher.encrypt(nonce, clear, context)))


def decrypt(cipher: AESGCM, encrypted: bytes, context: bytes) -> bytes:
    """Return the plaintext of `encrypt` with the same key and context.

    Raises:
        InvalidTag: the key or the context is another, or the text was changed.
        ValueError: it is too short.
    """
    nonce, ciphertext = encrypted[len(_FORMAT) : _HEAD_BYTES], memoryview(encrypted)[_HEAD_BYTES:]
    return cipher.decrypt(nonce, ciphertext, context)


# The data key.


def new_data_key() -> bytes:
    """Return a random data key, the secret of a `SnapshotCipher`."""
    return secrets.token_bytes(SECRET_BYTES)


def wrap_data_key(secret: bytes, data_key: bytes) -> bytes:
    """Encrypt a data key with a secret of the instance."""
    return encrypt(_wrapping_cipher(secret), data_key, b"")


def unwrap_data_key(instance_secrets: Sequence[bytes], wrapped: bytes) -> bytes:
    """Decrypt a data key with any of the instance's secrets.

    Raises:
        ConfigurationError: none of them has encrypted it.
    """
    for secret in instance_secrets:
        with suppress(InvalidTag, ValueError):
            return decrypt(_wrapping_cipher(secret), wrapped, b"")
    raise ConfigurationError(
        "INSTANCE_SECRET_FILE: none of its secrets opens the stored snapshots; it must hold the one that all"
        " replicas share, or the one before, in a further line"
    )


def is_wrapped_by(secret: bytes, wrapped: bytes) -> bool:
    """Return True if this secret has encrypted the data key."""
    with suppress(ConfigurationError):
        unwrap_data_key((secret,), wrapped)
        return True
    return False


def _wrapping_cipher(secret: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"data key").derive(secret))


# The file in DATA_DIR.


def load_or_create_secret(
    data_dir: Path, instance_secrets: Sequence[bytes] = (), *, name: str = SECRET_FILE
) -> bytes:
    """Return the secret of a `SnapshotCipher`; the first process creates it. Waits for the disk.

    A file of another size is replaced by a new secret, which opens nothing that an earlier secret sealed.

    Args:
        data_dir: an existing directory; the file in it is private (see `private_mode`).
        instance_secrets: the file is encrypted with the first of them; none: it is in clear.

    Raises:
        ConfigurationError: none of the instance's secrets opens it.
        StoreFailed: it can be neither read nor written.
    """
    path = data_dir / name
    try:
        with directory_lock(data_dir):
            if not instance_secrets:
                return _load_secret(path, SECRET_BYTES) or _publish_secret(path, new_data_key())
            stored = _load_secret(path, SECRET_BYTES, _WRAPPED_BYTES) or new_data_key()
            is_wrapped = len(stored) == _WRAPPED_BYTES
            data_key = unwrap_data_key(instance_secrets, stored) if is_wrapped else stored
            if not (is_wrapped and is_wrapped_by(instance_secrets[0], stored)):
                _publish_secret(path, wrap_data_key(instance_secrets[0], data_key))
            return data_key
    except OSError as error:
        raise StoreFailed(f"{path} can be neither read nor written: {error.strerror}") from error


def _load_secret(path: Path, *sizes: int) -> bytes | None:
    with suppress(FileNotFoundError):
        restrict_to_owner(path)
        with os.fdopen(open_no_follow(path, os.O_RDONLY), "rb") as file:
            secret = file.read()
        if len(secret) in sizes:
            return secret
        _log.warn(
            "{path} has {size} bytes instead of {expected}: creating a new secret; stored snapshots are lost",
            path=str(path),
            size=len(secret),
            expected=SECRET_BYTES,
        )
    return None


def _publish_secret(path: Path, secret: bytes) -> bytes:
    """Write it under another name first: a crash leaves no part of a secret in its place."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)  # a crash's
    with os.fdopen(open_no_follow(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(secret)
    publish_file(temporary, path)
    return secret

"""Encryption of the secrets of composes: customizations of images, and sources of imports."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from image_service.core.errors import StoreFailed
from image_service.jobs.model import ImageCustomization
from image_service.jobs.task_model import ImportSource
from image_service.server.snapshots.storage.encryption import decrypt, encrypt

if TYPE_CHECKING:
    from collections.abc import Sequence

ComposeSecrets: TypeAlias = ImageCustomization | ImportSource

_KEY_BYTES = 32


@attrs.frozen
class SecretsCipher:
    """Seals the secrets of composes with AES-256-GCM, each for its tenant and compose alone.

    Args:
        secrets: of the instance; the first seals, all open.
    """

    _secrets: Sequence[bytes] = attrs.field(repr=False)
    _lock: Lock = attrs.field(factory=Lock, init=False, repr=False, eq=False)
    """One value at a time: each takes several times the memory of its config."""

    def seal(self, tenant: str, compose_id: str, value: ComposeSecrets) -> bytes:
        """Encrypt the secrets of a compose."""
        with self._lock:
            return encrypt(_cipher(self._secrets[0]), _to_document(value), _context(tenant, compose_id))

    def unseal(self, tenant: str, compose_id: str, sealed: bytes) -> ComposeSecrets:
        """Decrypt what `seal` encrypted for the same tenant and compose.

        Raises:
            StoreFailed: no secret opens it, or it is of another tenant or compose.
        """
        with self._lock:
            return _to_value(json.loads(self._decrypt(compose_id, sealed, _context(tenant, compose_id))))

    def seal_for_tenant(self, tenant: str, compose_id: str, sealed: bytes) -> bytes:
        """Return secrets that version 1 of the tables sealed, without the tenant, as `seal` does.

        Raises:
            StoreFailed: no secret opens them.
        """
        document = self._decrypt(compose_id, sealed, compose_id.encode())
        return encrypt(_cipher(self._secrets[0]), document, _context(tenant, compose_id))

    def _decrypt(self, compose_id: str, sealed: bytes, context: bytes) -> bytes:
        for secret in self._secrets:
            with suppress(InvalidTag, ValueError):
                return decrypt(_cipher(secret), sealed, context)
        raise StoreFailed(
            f"the secrets of compose {compose_id} cannot be decrypted: damaged, of another tenant or compose,"
            " or sealed with a secret that INSTANCE_SECRET_FILE does not hold any more"
        )


def _to_document(value: ComposeSecrets) -> bytes:
    text = json.dumps(attrs.asdict(value), default=lambda content: b64encode(content).decode())
    return text.encode()


def _to_value(document: dict[str, Any]) -> ComposeSecrets:
    if "manifest_urls" in document:
        manifests = tuple(map(b64decode, document["manifests"]))
        return ImportSource(tuple(document["manifest_urls"]), manifests)
    ignition = document["ignition"]
    return ImageCustomization(
        ignition=None if ignition is None else b64decode(ignition),
        firstboot_url=document["firstboot_url"],
        kernel_arguments=tuple(document["kernel_arguments"]),
    )


def _context(tenant: str, compose_id: str) -> bytes:
    """Return the additional authenticated data of a compose's secrets: purpose, tenant and id."""
    return json.dumps(["compose secrets", tenant, compose_id]).encode()


def _cipher(secret: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"compose secrets").derive(secret))

"""Encryption of customizations, which hold secrets of their requests."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from image_service.errors import StoreFailed
from image_service.jobs.model import ImageCustomization
from image_service.snapshots.encryption import decrypt, encrypt

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY_BYTES = 32


@attrs.frozen
class CustomizationCipher:
    """Seals customizations with AES-256-GCM, each for its compose alone.

    Args:
        secrets: of the instance; the first seals, all open.
    """

    _secrets: Sequence[bytes] = attrs.field(repr=False)

    def seal(self, compose_id: str, customization: ImageCustomization) -> bytes:
        """Encrypt a customization."""
        ignition = customization.ignition
        document = {
            "ignition": None if ignition is None else base64.b64encode(ignition).decode(),
            "firstboot_url": customization.firstboot_url,
            "kernel_arguments": customization.kernel_arguments,
        }
        return encrypt(_cipher(self._secrets[0]), json.dumps(document).encode(), compose_id.encode())

    def unseal(self, compose_id: str, sealed: bytes) -> ImageCustomization:
        """Decrypt a customization that `seal` encrypted for the same compose.

        Raises:
            StoreFailed: no secret opens it, or it is of another compose.
        """
        for secret in self._secrets:
            with suppress(InvalidTag, ValueError):
                document = json.loads(decrypt(_cipher(secret), sealed, compose_id.encode()))
                ignition = document["ignition"]
                return ImageCustomization(
                    ignition=None if ignition is None else base64.b64decode(ignition),
                    firstboot_url=document["firstboot_url"],
                    kernel_arguments=tuple(document["kernel_arguments"]),
                )
        raise StoreFailed(
            f"the customization of compose {compose_id} cannot be decrypted: damaged, or sealed with a secret"
            " that INSTANCE_SECRET_FILE does not hold any more"
        )


def _cipher(secret: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"customization").derive(secret))

"""Short links: codes, targets, and the descriptions that need no code. Pure."""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.bodies import Time, body
from image_service.core.errors import NotFound, SnapshotUnreadable
from image_service.core.images.reference import (
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    PinnedVersion,
)

if TYPE_CHECKING:
    from image_service.core.images.reference import Ref

_CODE_BYTES = 10
_ID_BYTES = 8
ISO, INITRD, SCRIPT, KERNEL = "iso", "img", "ipxe", "vmlinuz"
"""The suffixes of short links."""


def new_code() -> str:
    """Return the secret part of a link: 80 random bits, as 16 lower-case letters and digits."""
    return base64.b32encode(secrets.token_bytes(_CODE_BYTES)).decode().lower()


def new_link_id() -> str:
    """Return the name of a link, 16 hexadecimal digits; it opens nothing."""
    return secrets.token_hex(_ID_BYTES)


@attrs.frozen
class LinkTarget:
    """The image for which a link stands.

    Args:
        ref: complete; an ISO, or the initrd for PXE, which stands for its kernel and iPXE script too.
        credentials: of the URL that the link was made of.
        pin: the one version that a pinned link names.
        expires_at: seconds since 1970. A writer of the database can end a link, but not prolong it.
    """

    ref: ImageRef
    credentials: Credentials | None
    pin: PinnedVersion | None
    expires_at: float

    @property
    def is_iso(self) -> bool:
        """True if it stands for an ISO."""
        return self.ref.kind is not None and self.ref.kind.is_iso

    def find_ref(self, suffix: str) -> Ref:
        """Return the file that a suffix names; raises NotFound if the link has no such suffix."""
        ref = self.ref
        if suffix == (ISO if self.is_iso else INITRD):
            return ref
        if suffix == SCRIPT and not self.is_iso:
            return attrs.evolve(ref, kind=Kind.IPXE_SCRIPT)
        if suffix == KERNEL and not self.is_iso and ref.version and ref.architecture:
            return ArtifactRef(BootArtifact.KERNEL, ref.version, ref.architecture)
        raise NotFound("this short link stands for an image with another suffix")

    def encode(self) -> bytes:
        """Return it as JSON, with the credentials."""
        ref, credentials, pin = self.ref, self.credentials, self.pin
        document = {
            "ref": [ref.infra_env_id, ref.version, ref.architecture, ref.kind.value if ref.kind else None],
            "credentials": credentials and [credentials.scheme.value, credentials.secret],
            "pin": pin and [pin.generation, pin.base_sha256],
            "expires_at": self.expires_at,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, payload: bytes) -> LinkTarget:
        """Return the target that ``encode`` encoded; raises SnapshotUnreadable for another release's."""
        try:
            document = json.loads(payload)
            infra_env_id, version, architecture, kind = document["ref"]
            credentials, pin = document["credentials"], document["pin"]
            return cls(
                ImageRef(infra_env_id, version, architecture, Kind(kind)),
                credentials and Credentials(CredentialScheme(credentials[0]), credentials[1]),
                pin and PinnedVersion(*pin),
                float(document["expires_at"]),
            )
        except (KeyError, TypeError, ValueError):
            pass  # the error would be the context of the next, and may hold the credentials
        raise SnapshotUnreadable("a stored link is not in this release's format")


@body()
class LinkBody:
    """The description of a link, which does not need its code.

    Args:
        readable: False: the present secret does not open it, and texts are empty. It can be revoked.
        label: a text that its maker chose.
        created_at: RFC 3339; None: it is not readable.
        expires_at: RFC 3339.
    """

    id: str
    readable: bool
    label: str
    infra_env: str
    kind: str
    version: str
    architecture: str
    pinned: bool
    created_at: Time | None
    expires_at: Time

    @classmethod
    def of_unreadable(cls, link_id: str, expires_at: str) -> LinkBody:
        """Return the description of a link that cannot be read."""
        return cls(
            id=link_id,
            readable=False,
            label="",
            infra_env="",
            kind="",
            version="",
            architecture="",
            pinned=False,
            created_at=None,
            expires_at=expires_at,
        )

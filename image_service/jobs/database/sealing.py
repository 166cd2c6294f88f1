"""Protection of rows from readers and writers of the database, by the secrets of the instance.

The secrets of composes, customizations of images and sources of imports, are encrypted. Plans, artifacts
and uploads have a tag, by which they are known to be of their tenant and row, and unchanged.
"""

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

from image_service.core.errors import RowNotAuthentic, StoreFailed
from image_service.jobs.database.documents import canonical_json
from image_service.jobs.model import ImageCustomization
from image_service.jobs.task_model import ImportSource
from image_service.server.snapshots.storage.encryption import decrypt, encrypt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.jobs.model import Artifact, Compose, UploadResult

ComposeSecrets: TypeAlias = ImageCustomization | ImportSource

_KEY_BYTES = 32


@attrs.frozen
class RowCipher:
    """Encrypts and authenticates by AES-256-GCM, each value for its purpose, tenant and row alone.

    Args:
        secrets: of the instance; the first seals, all open.
    """

    _secrets: Sequence[bytes] = attrs.field(repr=False)
    _lock: Lock = attrs.field(factory=Lock, init=False, repr=False, eq=False)
    """One value at a time: each takes several times the memory of its config."""

    def seal(self, tenant: str, compose_id: str, value: ComposeSecrets) -> bytes:
        """Encrypt the secrets of a compose."""
        with self._lock:
            return encrypt(_cipher(self._secrets[0]), _to_document(value), _secrets_of(tenant, compose_id))

    def unseal(self, tenant: str, compose_id: str, sealed: bytes) -> ComposeSecrets:
        """Decrypt what `seal` encrypted for the same tenant and compose.

        Raises:
            RowNotAuthentic: no secret opens it, or it is of another tenant or compose.
        """
        with self._lock:
            return _to_value(json.loads(self._unseal(compose_id, sealed, _secrets_of(tenant, compose_id))))

    def seal_for_tenant(self, tenant: str, compose_id: str, sealed: bytes) -> bytes:
        """Return secrets that version 1 of the tables sealed, without the tenant, as `seal` does.

        Raises:
            StoreFailed: no secret opens them.
        """
        try:
            document = self._unseal(compose_id, sealed, compose_id.encode())
        except RowNotAuthentic as error:
            raise StoreFailed(error.detail) from None
        return encrypt(_cipher(self._secrets[0]), document, _secrets_of(tenant, compose_id))

    def tag_plan(
        self, tenant: str, compose_id: str, plan: object, source_image: str | None, image_type: str | None
    ) -> str:
        """Return the tag of a plan, which has none yet, with the columns that complete it."""
        return self._tag("plan", tenant, compose_id, [plan, source_image, image_type])

    def check_plan(self, compose: Compose) -> None:
        """Raise RowNotAuthentic unless the plan of a compose has its tag."""
        content = [attrs.evolve(compose.plan, tag=""), compose.source_image, compose.image_type]
        self._check("plan", compose.tenant, compose.id, content, compose.plan.tag)

    def tag_artifact(self, tenant: str, owner_id: str, artifact: Artifact) -> Artifact:
        """Return an artifact with the tag for its owner.

        Args:
            owner_id: of the job that has made it, or of the compose or catalog image that it becomes.
        """
        content = attrs.evolve(artifact, tag="")
        return attrs.evolve(artifact, tag=self._tag("artifact", tenant, owner_id, content))

    def check_artifact(self, tenant: str, owner_id: str, artifact: Artifact) -> Artifact:
        """Return an artifact that has the tag for its owner.

        Raises:
            RowNotAuthentic: it has not.
        """
        self._check("artifact", tenant, owner_id, attrs.evolve(artifact, tag=""), artifact.tag)
        return artifact

    def tag_upload(self, tenant: str, compose_id: str, upload: UploadResult) -> UploadResult:
        """Return an upload with the tag of its target and location."""
        tag = self._tag("upload", tenant, compose_id, [upload.target, upload.location])
        return attrs.evolve(upload, tag=tag)

    def check_upload(self, tenant: str, compose_id: str, upload: UploadResult) -> None:
        """Raise RowNotAuthentic unless an upload has its tag."""
        self._check("upload", tenant, compose_id, [upload.target, upload.location], upload.tag)

    def _tag(self, purpose: str, tenant: str, row_id: str, content: object) -> str:
        context = canonical_json([purpose, tenant, row_id, content])
        return encrypt(_cipher(self._secrets[0]), b"", context).hex()

    def _check(self, purpose: str, tenant: str, row_id: str, content: object, tag: str) -> None:
        context = canonical_json([purpose, tenant, row_id, content])
        try:
            is_authentic = self._decrypt(bytes.fromhex(tag), context) is not None
        except (TypeError, ValueError):  # a tag that is not hexadecimal
            is_authentic = False
        if not is_authentic:
            raise RowNotAuthentic(
                f"the {purpose} of {row_id} is not as the service has written it: changed in the database,"
                " of another tenant or row, or of a secret that INSTANCE_SECRET_FILE does not hold any more"
            )

    def _unseal(self, compose_id: str, sealed: bytes, context: bytes) -> bytes:
        document = self._decrypt(sealed, context)
        if document is None:
            raise RowNotAuthentic(
                f"the secrets of compose {compose_id} cannot be decrypted: damaged, of another tenant or"
                " compose, or sealed with a secret that INSTANCE_SECRET_FILE does not hold any more"
            )
        return document

    def _decrypt(self, sealed: bytes, context: bytes) -> bytes | None:
        """Return what `encrypt` was given; None: no secret decrypts it with this context."""
        for secret in self._secrets:
            with suppress(InvalidTag, ValueError):
                return decrypt(_cipher(secret), sealed, context)
        return None


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


def _secrets_of(tenant: str, compose_id: str) -> bytes:
    """Return the additional authenticated data of a compose's secrets: purpose, tenant and id."""
    return json.dumps(["compose secrets", tenant, compose_id]).encode()


def _cipher(secret: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"compose secrets").derive(secret))

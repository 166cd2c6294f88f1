"""The tasks of EC2's API: imports and exports. Pure."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from enum import StrEnum

import attrs

from image_service.jobs.model import Json  # noqa: TC001 - same


class TaskKind(StrEnum):
    """The kind of a task, which is the prefix of its id."""

    IMPORT_VOLUME = "import-vol"
    IMPORT_INSTANCE = "import-i"
    EXPORT_INSTANCE = "export-i"
    IMPORT_IMAGE = "import-ami"
    IMPORT_SNAPSHOT = "import-snap"
    EXPORT_IMAGE = "export-ami"


@attrs.frozen
class ConversionTask:
    """An import or an export; a compose does its work.

    Args:
        id: its kind and 17 hex digits, those of the aliases of its first image.
        request: the parameters of the operation as EC2's model names them, without secrets.
        tags: values by keys.
        volume_bytes: that an import reserves of ``EC2_MAX_BYTES``; 0 of an export.
        expires_at: until when the upload of an import must be complete.
        cancel_reason: of the client that cancelled it.
    """

    id: str
    compose_id: str
    tenant: str
    kind: TaskKind
    request: Json = attrs.field(repr=False)
    tags: Json
    volume_bytes: int
    created_at: datetime
    expires_at: datetime
    cancel_reason: str = ""


@attrs.frozen
class ImportSource:
    """The manifests of an import; secret, because their URLs are signed.

    Args:
        manifest_urls: one for each disk.
        manifests: their contents, pinned once the upload is complete; empty before.
    """

    manifest_urls: tuple[str, ...] = attrs.field(repr=False)
    manifests: tuple[bytes, ...] = attrs.field(default=(), repr=False)


@attrs.frozen
class TaskLimits:
    """Limits of a tenant.

    Args:
        max_tasks: that have not ended.
        max_bytes: volumes of imported images and of imports that have not ended, together.
    """

    max_tasks: int
    max_bytes: int


@attrs.frozen
class TaskAnswer:
    """The answer to a changing request, which is repeated for a request with the same signature.

    Args:
        digest: of the signature.
        output: as EC2's model names its members.
    """

    digest: str
    output: Json = attrs.field(repr=False)

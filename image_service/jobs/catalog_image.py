"""The images of the catalog. Pure."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from enum import StrEnum
from types import MappingProxyType

import attrs

from image_service.jobs.image_ids import instance_alias, volume_alias
from image_service.jobs.model import Artifact, Json  # noqa: TC001 - same


class DiskLayout(StrEnum):
    """The layout of an image's bytes."""

    DISK = "disk"
    PARTITION = "partition"  # a file system without a partition table


@attrs.frozen
class CatalogImage:
    """A finished disk image in the image catalog.

    Args:
        id: UUID; its aliases ``i-…`` and ``vol-…`` have the first 17 hex digits of it.
        format: ``raw``, ``qcow2``, ``vmdk``, ``vhd``, ``ova``.
        source: unique: ``compose:ID``; of an imported one ``import:TASK``, of its further disks
            ``import:TASK/N``, N from 2.
        description: of the request that imported it.
        platform: of an imported one ``Linux`` or ``Windows``; "": it was not named.
        volume_bytes: size of the volume that it was imported for; 0: it was not imported.
        launch_specification: of the import of an instance, as EC2's API names its members; without secrets.
    """

    id: str
    tenant: str
    name: str
    architecture: str
    format: str
    virtual_size: int
    artifact: Artifact
    source: str
    created_at: datetime
    description: str = ""
    platform: str = ""
    layout: DiskLayout = attrs.field(default=DiskLayout.DISK, converter=DiskLayout)
    volume_bytes: int = 0
    launch_specification: Json = attrs.field(factory=lambda: MappingProxyType({}), repr=False)

    @property
    def stored_id(self) -> str:
        """The id of its row, which composes that read it lock."""
        return self.id

    @property
    def is_partition(self) -> bool:
        """True if it is a file system without a partition table."""
        return self.layout is DiskLayout.PARTITION

    @property
    def instance_alias(self) -> str:
        """The id under which EC2's API exports it."""
        return instance_alias(self.id)

    @property
    def volume_alias(self) -> str:
        """The id of its volume in EC2's API."""
        return volume_alias(self.id)

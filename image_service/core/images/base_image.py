"""A base image: its open file, the parsed ISO and its identity."""

from __future__ import annotations

import attrs

from image_service.core.base_file import BaseFile  # noqa: TC001 - attrs resolves annotations at run time
from image_service.core.errors import Unprocessable
from image_service.core.families.coreos.live_iso import LiveIso
from image_service.core.families.iso_layout import IsoLayout  # noqa: TC001 - same
from image_service.core.families.live.family import LiveFamily  # noqa: TC001 - same


@attrs.frozen
class BaseImage:
    """A pristine live ISO, opened and parsed once."""

    file: BaseFile
    iso: IsoLayout
    # Its identity in every ETag, lower-case hex: the digest of the whole file; of a remote one, a
    # digest of its URL, validator and size, unless block digests show that it has the configured one.
    sha256: str
    version: str  # the OS build (``OS_IMAGES`` ``version``)
    architecture: str  # RPM architecture name
    disconnected: bool = False  # the ``disconnected-iso``, which may already contain a customization
    family: LiveFamily | None = None  # None: CoreOS
    needs_nmstate: bool = False  # its initrd sets up static networks with nmstatectl and does not contain it

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the base image {self.version} ({self.architecture})"

    @property
    def family_name(self) -> str:
        """The name of its family in messages."""
        return f"the family {self.family.name}" if self.family else "CoreOS"

    @property
    def coreos(self) -> LiveIso:
        """Its layout, which has areas for a customization; Unprocessable if it is not of CoreOS."""
        if not isinstance(self.iso, LiveIso):
            raise Unprocessable(f"{self.name} is of {self.family_name}, not of CoreOS")
        return self.iso


@attrs.frozen
class NmstateImage:
    """An initrd with nmstatectl alone, made from a base image's rootfs; its digest is lower-case hex."""

    file: BaseFile
    sha256: str

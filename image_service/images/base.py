"""The base image as the layers above see it: an open file, its layout, its identity."""

from __future__ import annotations

import attrs

from image_service.coreos.live_iso import LiveIso  # noqa: TC001 - attrs resolves annotations at run time
from image_service.files.base_file import BaseFile  # noqa: TC001 - same


@attrs.frozen
class BaseImage:
    """A pristine CoreOS live ISO, opened and parsed once.

    Args:
        layout: where its embed areas and boot files are.
        sha256: digest of the whole file, lower-case hex: its identity in every ETag.
        version: the OS build (``OS_IMAGES`` ``version``).
        architecture: RPM architecture name.
        disconnected: it is the ``disconnected-iso``, whose embed areas may already contain a customization.
        needs_nmstate: its initrd sets up static networks with nmstatectl and does not contain it.
    """

    file: BaseFile
    layout: LiveIso
    sha256: str
    version: str
    architecture: str
    disconnected: bool = False
    needs_nmstate: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the base image {self.version} ({self.architecture})"


@attrs.frozen
class NmstateImage:
    """An initrd with nmstatectl alone, made from a base image's rootfs; its digest is lower-case hex."""

    file: BaseFile
    sha256: str

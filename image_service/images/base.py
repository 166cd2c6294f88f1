"""The base image as the layers above see it: an open descriptor, its layout, its identity."""

from __future__ import annotations

import attrs

from image_service.coreos.live_iso import LiveIso  # noqa: TC001 - attrs resolves annotations at run time
from image_service.images.extents import BaseFile  # noqa: TC001 - same


@attrs.frozen
class BaseImage:
    """A pristine CoreOS live ISO, opened and parsed once.

    Args:
        file: the open file.
        layout: what ``coreos.live_iso`` read from it.
        sha256: digest of the whole file, lower-case hex: its identity in every ETag.
        version: the OS build (``OS_IMAGES`` ``version``).
        openshift_version: the OpenShift version it is for.
        architecture: RPM architecture name.
        disconnected: the ``disconnected-iso``, whose embed areas may already hold a customization.
    """

    file: BaseFile
    layout: LiveIso
    sha256: str
    version: str
    openshift_version: str
    architecture: str
    disconnected: bool

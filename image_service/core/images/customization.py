"""The customization of an infra-env's image, as assisted-service has it."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs

from image_service.core.families.coreos.kargs import KernelArgument  # noqa: TC001 - same


@attrs.frozen
class Customization:
    """Everything that is laid over a base image."""

    # A valid config, of Ignition or of another family, byte for byte as received. Empty: there is none, and
    # the machine must not find one.
    ignition: bytes = attrs.field(repr=False)
    kernel_arguments: tuple[KernelArgument, ...] = attrs.field(repr=False)
    modified: datetime | None  # Last-Modified of the config, UTC
    # A compressed archive for the kernel, unchanged. None: there is none, or none was requested.
    ramdisk: bytes | None = attrs.field(default=None, repr=False)
    # By which a minimal ISO reaches the service, without a slash at its end; None: by that of now.
    base_url: str | None = None

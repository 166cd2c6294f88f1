"""What assisted-service says about one infra-env: the few bytes that make its image its own."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs

from image_service.coreos.kargs import KernelArgument  # noqa: TC001 - same


@attrs.frozen
class Customization:
    """Everything that is laid over a base image.

    Args:
        ignition: the Ignition config, exactly as assisted-service sent it; whoever took it in has checked
            that it is one. Empty: there is none, and the machine must not believe that there is.
        kernel_arguments: what to append, replace and delete, in order.
        modified: assisted-service's Last-Modified for the config, UTC; None: it sent none.
        ramdisk: a compressed archive for the kernel, as it is; None: there is none, or it was not asked for.
    """

    ignition: bytes = attrs.field(repr=False)
    kernel_arguments: tuple[KernelArgument, ...] = attrs.field(repr=False)
    modified: datetime | None
    ramdisk: bytes | None = attrs.field(default=None, repr=False)

"""What assisted-service says about one infra-env: the few bytes that make its image its own."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs


@attrs.frozen
class Customization:
    """Everything that is laid over a base image.

    Args:
        ignition: the Ignition config, exactly as assisted-service sent it; whoever took it in has checked
            that it is one.
        kernel_arguments: arguments to append, in order.
        modified: assisted-service's Last-Modified for the config, UTC; None: it sent none.
    """

    ignition: bytes = attrs.field(repr=False)
    kernel_arguments: tuple[str, ...]
    modified: datetime | None

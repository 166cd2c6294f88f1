"""The expected customized image, as coreos-installer makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path


def check_image(image: Path, base: Path, config: bytes, kernel_arguments: str | None) -> None:
    """Check that an image contains a customization and no other change of its base.

    Args:
        image: the served bytes.
        base: the base image.
        config: Ignition config.
        kernel_arguments: all of them; None if the base has no areas for kernel arguments.
    """
    assert run_client("coreos-installer", "iso", "ignition", "show", image) == config
    if kernel_arguments is not None:
        assert (
            run_client("coreos-installer", "iso", "kargs", "show", image) == f"{kernel_arguments}\n".encode()
        )
    assert run_client("coreos-installer", "iso", "reset", "-o", "-", image) == base.read_bytes()

"""What a customised image must be, by coreos-installer's judgement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.acceptance.clients import run_client

if TYPE_CHECKING:
    from pathlib import Path


def check_image(image: Path, base: Path, config: bytes, kernel_arguments: str | None) -> None:
    """Check that an image holds a customization, and besides it nothing but its base.

    Args:
        image: as it was served.
        base: as it was before.
        config: Ignition config.
        kernel_arguments: all of them; None: the base has no areas for any.
    """
    assert run_client("coreos-installer", "iso", "ignition", "show", image) == config
    if kernel_arguments is not None:
        assert (
            run_client("coreos-installer", "iso", "kargs", "show", image) == f"{kernel_arguments}\n".encode()
        )
    assert run_client("coreos-installer", "iso", "reset", "-o", "-", image) == base.read_bytes()

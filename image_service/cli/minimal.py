"""Minimal ISOs without the service: spliced from the base, or derived in a temporary directory."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import with_checked_minimal
from image_service.cli.command import interrupt_on_signals
from image_service.cli.progress import ProgressBar
from image_service.errors import RamdiskTooLarge
from image_service.images.canvas import derived_minimal_canvas, spliced_minimal_canvas
from image_service.images.compose import compose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.images.base import BaseImage
    from image_service.images.boot_image import BootImage
    from image_service.images.customization import Customization


@contextmanager
def minimal_image(
    base: BaseImage, customization: Customization, rootfs_url: str, scratch: Path
) -> Iterator[BootImage]:
    """Compose a minimal ISO as the service would.

    Args:
        base: pristine; where it needs nmstatectl, a minimal ISO is derived.
        customization: laid over it.
        rootfs_url: where the machine fetches the rootfs.
        scratch: a directory for a derived ISO, which is removed when the block ends.

    Raises:
        ImageServiceError: none can be made.
        OSError: a file cannot be read or written.
    """
    checked = with_checked_minimal(base)
    if checked.layout.minimal and not base.needs_nmstate:
        try:
            spliced = compose(spliced_minimal_canvas(checked, rootfs_url), customization, "")
        except RamdiskTooLarge:
            pass  # a derived one has more room
        else:
            yield spliced
            return
    with _derived(base, scratch) as template:
        yield compose(derived_minimal_canvas(base, template, rootfs_url), customization, "")


@contextmanager
def _derived(base: BaseImage, scratch: Path) -> Iterator[BaseImage]:
    # Imported here because most commands do not need them.
    from image_service.catalog.derived.derived_files import DerivedFileStore  # noqa: PLC0415
    from image_service.catalog.storage.data_dir import DataDir  # noqa: PLC0415
    from image_service.concurrency.interruption import Interruption  # noqa: PLC0415

    # The GUIDs of the derived partitions depend on the digest.
    with ProgressBar(base.file.size) as progress:
        base = attrs.evolve(base, sha256=base.file.sha256(on_block=progress.advance))
    with TemporaryDirectory(dir=scratch, prefix=".image-service-") as name:
        interruption = Interruption()
        with interrupt_on_signals(interruption.interrupt):
            template = DerivedFileStore(DataDir(Path(name)), interruption).get_minimal_iso(base)
        try:
            yield template
        finally:
            template.file.close()

"""Minimal ISOs without a service: spliced from the base as it is, or derived for as long as it takes."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from image_service.cli.base import with_true_minimal
from image_service.cli.command import signals_interrupt
from image_service.cli.progress import Progress
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
    """Compose a minimal ISO, as the service would.

    Args:
        base: pristine; where it needs nmstatectl, one is derived.
        customization: what is laid over it.
        rootfs_url: where the machine fetches the rootfs.
        scratch: a directory for what is derived if need be.

    Yields:
        the image; what was derived for it is removed in the end.

    Raises:
        ImageServiceError: there can be none; says why.
        OSError: a file cannot be read or written.
    """
    spliced = _spliced(with_true_minimal(base), customization, rootfs_url)
    if spliced:
        yield spliced
        return
    with _derived(base, scratch) as template:
        yield compose(derived_minimal_canvas(base, template, rootfs_url), customization, "")


def _spliced(base: BaseImage, customization: Customization, rootfs_url: str) -> BootImage | None:
    if base.layout.minimal and not base.needs_nmstate:
        with suppress(RamdiskTooLarge):  # the derived one has more room
            return compose(spliced_minimal_canvas(base, rootfs_url), customization, "")
    return None


@contextmanager
def _derived(base: BaseImage, scratch: Path) -> Iterator[BaseImage]:
    # Imported late: most images need none of what comes with them.
    from image_service.catalog.derived.derived_files import DerivedFiles  # noqa: PLC0415
    from image_service.catalog.storage.data_dir import DataDir  # noqa: PLC0415
    from image_service.concurrency.interruption import Interruption  # noqa: PLC0415

    with Progress(
        base.file.size
    ) as progress:  # the digest makes the derived partitions' GUIDs the same everywhere
        base = attrs.evolve(base, sha256=base.file.sha256(on_block=progress.advance))
    with TemporaryDirectory(dir=scratch, prefix=".image-service-") as name:
        interruption = Interruption()
        with signals_interrupt(interruption.interrupt):
            template = DerivedFiles(DataDir(Path(name)), interruption).get_minimal_iso(base)
        try:
            yield template
        finally:
            template.file.close()

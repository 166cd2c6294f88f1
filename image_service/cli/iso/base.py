"""Base images outside DATA_DIR and their minimal ISOs: nothing is stored beside them."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from image_service.cli.shared.input import open_input
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import interrupt_on_signals, printable
from image_service.common.command_line.progress_bar import ProgressBar
from image_service.core.errors import RamdiskTooLarge
from image_service.core.families.coreos.family import COREOS
from image_service.core.families.coreos.kargs import Operation, find_ineffective
from image_service.core.images.canvas import derived_minimal_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose
from image_service.tools.iso.description import with_checked_minimal
from image_service.tools.iso.iso_file import IsoFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.core.errors import Unprocessable
    from image_service.core.families.coreos.kargs import KernelArgument
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.canvas import Canvas
    from image_service.core.images.customization import Customization


@contextmanager
def open_iso_input(path: str, family: str | None = COREOS) -> Iterator[IsoFile]:
    """Open an ISO; see `image_service.tools.iso.iso_file.open_iso`.

    Args:
        path: - is standard input.
        family: None: the one that recognizes it.
    """
    with open_input(path) as file:
        yield IsoFile.read(file, path, family)


def note_ineffective(arguments: Iterable[KernelArgument]) -> None:
    """Note on standard error which kernel arguments to delete or replace are absent."""
    for argument in arguments:
        absent = argument.value
        if argument.operation is Operation.REPLACE:
            absent = absent.rpartition("=")[0]  # without the new value
        tell(
            f"image-service: note: --karg-{argument.operation.value} changes nothing: {printable(absent)} is"
            " not among the kernel arguments",
            "warn",
        )


def _compose_minimal(
    canvas: Canvas, customization: Customization, fixed: tuple[type[Unprocessable], ...] = ()
) -> BootImage:
    image = compose(canvas, customization, "", fixed=fixed)
    note_ineffective(find_ineffective(canvas.arguments, customization.kernel_arguments))
    return image


@contextmanager
def minimal_image(
    base: BaseImage, customization: Customization, rootfs_url: str, scratch: Path
) -> Iterator[BootImage]:
    """Compose a minimal ISO of a pristine base as the service would.

    A derived one is stored in the directory `scratch` until the block ends.

    Raises:
        ImageServiceError: none can be made.
        OSError: a file cannot be read or written.
    """
    checked = with_checked_minimal(base)
    if checked.coreos.minimal and not base.needs_nmstate:
        try:
            canvas = spliced_minimal_canvas(checked, rootfs_url)
            spliced = _compose_minimal(canvas, customization, (RamdiskTooLarge,))
        except RamdiskTooLarge:
            pass  # a derived one has more room
        else:
            yield spliced
            return
    with _derived(base, scratch) as template:
        yield _compose_minimal(derived_minimal_canvas(base, template, rootfs_url), customization)


@contextmanager
def _derived(base: BaseImage, scratch: Path) -> Iterator[BaseImage]:
    # Imported here because most commands do not need them.
    from image_service.common.concurrency.interruption import Interruption  # noqa: PLC0415
    from image_service.server.catalog.derived.derived_files import DerivedFileStore  # noqa: PLC0415
    from image_service.server.catalog.storage.data_dir import DataDir  # noqa: PLC0415

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

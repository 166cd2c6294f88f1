"""Customizes a CoreOS disk: into a new file, or in place."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.signals import signals_deferred
from image_service.common.files.data_ranges import data_ranges
from image_service.common.programs.dependencies import require
from image_service.core.errors import NotCustomizable, UnsafeImage
from image_service.core.formats.disk.model import DiskFormat
from image_service.toolkit.customization.boot_edits import plan_edits
from image_service.toolkit.customization.boot_partition import copy_partition, find_boot_partition
from image_service.toolkit.customization.disk_writer import DiskWriter, open_for_writing
from image_service.toolkit.customization.ext4_editor import Ext4Editor
from image_service.toolkit.customization.patch import Patch, compare_files, compare_with_copy
from image_service.toolkit.customization.redo_file import (
    Redo,
    read_redo,
    redo_path,
    remove_redo,
    write_redo,
)
from image_service.toolkit.disks.digest import sha256_beside, sha256_of
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.disks.sparse_copy import copy_sparse
from image_service.toolkit.workspace.dependencies import ALWAYS, DEBUGFS, E2FSCK, QEMU_IMG, QEMU_IO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.toolkit.customization.disk_customization import DiskCustomization
    from image_service.toolkit.disks.opening import DiskImage
    from image_service.toolkit.workspace.workspace import Workspace

FORMATS = (DiskFormat.RAW, DiskFormat.QCOW2)
"""The disk that is customized."""

_ORPHAN_SECONDS = 10  # in which the qemu-io of a killed call ends: at once, unless the machine is slow


@attrs.frozen
class CustomizedDisk:
    """The result of a customization.

    Args:
        file_patch: the changes of the file, which may have become longer, too; None: not compared.
        input_sha256: of the source's file; None: not computed.
        output_sha256: of the new file; None: not computed.
        was_unfinished: True if a killed call had begun it, in place.
    """

    format: DiskFormat
    patch: Patch = attrs.field(repr=False)
    file_patch: Patch | None = attrs.field(default=None, repr=False, kw_only=True)
    input_sha256: str | None = None
    output_sha256: str | None = None
    was_unfinished: bool = False


def _ignore(_image: DiskImage) -> None:
    pass


def customize_disk(  # noqa: PLR0913 - the properties of a call
    source: Path,
    target: Path,
    customization: DiskCustomization,
    workspace: Workspace,
    declared: str | None = None,
    *,
    on_open: Callable[[DiskImage], None] = _ignore,
    digest: bool = True,
    compare: bool = False,
) -> CustomizedDisk:
    """Write a customized copy of a disk image, in the same format.

    Args:
        source: raw or qcow2.
        target: the new file; it stays as it was if this fails.
        declared: format of the source; None: as detected.
        on_open: gets the source, when it is known to be safe.
        digest: compute the SHA-256 of both files.
        compare: find the changes of the file.

    Raises:
        NotCustomizable: it is not a CoreOS disk, or has a config or has booted already.
        UnsafeImage: it is not safe, in use, or its file system is damaged.
        Unprocessable: the customization is invalid.
        ImageServiceError: a limit is exceeded, or a program failed or is missing.
    """
    customization.check()
    with open_image(source, declared, pace=workspace.pace) as image, ExitStack() as stack:
        on_open(image)
        hashed = stack.enter_context(sha256_beside(image.descriptor, workspace.pace)) if digest else None
        patch = _prepare(image, customization, workspace)
        data = sum(length for _, length in data_ranges(image.descriptor))
        workspace.reserve(data + patch.size, "the customized copy", target)
        output = stack.enter_context(workspace.output(target))
        with open_for_writing(output) as descriptor:
            copy_sparse(image.descriptor, descriptor, workspace)
            DiskWriter(descriptor, output, image.disk.format, workspace).write(patch)
            output_sha256 = sha256_of(descriptor, workspace.pace) if digest else None
            file_patch = compare_files(image.descriptor, descriptor, workspace.pace) if compare else None
        input_sha256 = hashed.result() if hashed else None
        return CustomizedDisk(image.disk.format, patch, input_sha256, output_sha256, file_patch=file_patch)


def customize_in_place(
    path: Path,
    customization: DiskCustomization,
    workspace: Workspace,
    declared: str | None = None,
    *,
    on_open: Callable[[DiskImage], None] = _ignore,
) -> CustomizedDisk:
    """Customize a disk image; it is as before or done after any failure and any signal but SIGKILL.

    After SIGKILL or a loss of power the same call finishes the write. Arguments and errors are those of
    `customize_disk`.
    """
    customization.check()
    path = path.resolve(strict=True)
    redo_file = redo_path(path)
    with open_for_writing(path, wait_seconds=_ORPHAN_SECONDS if redo_file.exists() else 0) as descriptor:
        state = os.fstat(descriptor)
        redo = read_redo(redo_file, {os.geteuid(), state.st_uid})
        if redo:
            return _finish(path, descriptor, redo, customization, workspace)
        with open_image(path, declared, pace=workspace.pace) as image:
            on_open(image)
            if not os.path.samestat(state, os.fstat(image.descriptor)):
                raise UnsafeImage(f"{path} was replaced while it was opened")
            patch = _prepare(image, customization, workspace)
            disk_format = image.disk.format
        workspace.check()
        with signals_deferred():
            writer = DiskWriter(descriptor, path, disk_format, workspace)
            try:
                write_redo(redo_file, Redo(disk_format, customization.digest(), patch))
                writer.write(patch)
            except BaseException:
                with workspace.unlimited():  # if this fails too, the redo file stays for the next call
                    writer.write(patch.reversed())
                    writer.repair_refcounts()
                remove_redo(redo_file)
                raise
            remove_redo(redo_file)
        return CustomizedDisk(disk_format, patch)


def _finish(
    path: Path, descriptor: int, redo: Redo, customization: DiskCustomization, workspace: Workspace
) -> CustomizedDisk:
    """Finish the write of a killed call; NotCustomizable if its customization was another one."""
    with open_image(path, redo.format.value, pace=workspace.pace) as image:
        redo.patch.check_fits(image.disk.read_at)
    writer = DiskWriter(descriptor, path, redo.format, workspace)
    with signals_deferred():
        writer.write(redo.patch)
        writer.repair_refcounts()
        remove_redo(redo_path(path))
    if redo.customization != customization.digest():
        raise NotCustomizable(
            f"{path}: a config is already there: that of a killed call, whose customization is finished now"
        )
    return CustomizedDisk(redo.format, redo.patch, was_unfinished=True)


def _prepare(image: DiskImage, customization: DiskCustomization, workspace: Workspace) -> Patch:
    """Return the patch that customizes a disk; a refusal names its file."""
    try:
        return _edit(image, customization, workspace)
    except NotCustomizable as error:
        raise NotCustomizable(f"{image.path}: {error.detail}") from None


def _edit(image: DiskImage, customization: DiskCustomization, workspace: Workspace) -> Patch:
    """Return the patch; only a copy of the boot partition is edited."""
    disk = image.disk
    if disk.format not in FORMATS:
        raise UnsafeImage(
            f"{image.path} is {image.content}; raw and qcow2 disks are customized: convert it first"
        )
    require([*ALWAYS, DEBUGFS, E2FSCK, *([QEMU_IO, QEMU_IMG] if disk.format is DiskFormat.QCOW2 else [])])
    partition = find_boot_partition(disk)
    editor = Ext4Editor(workspace.directory / "boot.img", workspace)
    copy_partition(disk, partition, editor.copy, workspace)
    file_system = editor.read()
    edits = plan_edits(file_system.root, customization)
    editor.check()
    editor.apply(file_system, edits)
    patch = compare_with_copy(disk, partition, editor.copy, file_system.block_size)
    editor.copy.unlink()
    return patch

"""Edits the file system in a copy of the boot partition by debugfs, which needs no mount.

New files are written by debugfs. A file that changes keeps its inode, and so its owner, permissions and
attributes: debugfs allocates or frees blocks at its end, and the content is written into its blocks directly,
so that an archive is appended to an initramfs of 100 MiB without a copy of it.

debugfs allocates blocks as "not written", which read as zeros; setting the map of such a block to where it is
already makes it a written one.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import ConversionFailed, FormatError, NoRoom, UnsafeImage
from image_service.core.formats.filesystems.ext4 import read_ext4
from image_service.toolkit.customization.boot_edits import ChangedFile, NewDirectory, NewFile, check_edits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from image_service.core.formats.filesystems.ext4 import Ext4
    from image_service.toolkit.customization.boot_edits import BootEdit
    from image_service.toolkit.workspace.workspace import Workspace

_SUPERBLOCK = 1024
_FREE_BLOCKS, _FREE_INODES, _WRITTEN_AT, _FREE_BLOCKS_HIGH = 0x0C, 0x10, 0x30, 0x158
_MAPPED = re.compile(r"^debugfs: +bmap <([0-9]+)> ([0-9]+)\n([0-9]+)(?: \(uninit\))?$", re.MULTILINE)
_UNSUPPORTED = {"dirdata", "mmp", "project", "quota", "read-only", "replica", "shared_blocks"}
"""Features whose structures debugfs would leave as they were, or for which it waits minutes (mmp)."""

_BLOCKS_OF_DIRECTORIES = 16  # for new names, new directories and maps of blocks


@attrs.frozen
class Ext4Editor:
    """Edits one copy.

    Args:
        copy: a file in the private directory of the workspace.
    """

    copy: Path
    workspace: Workspace

    def read(self) -> Ext4:
        """Return the file system.

        Raises:
            UnsafeImage: its journal wants replay, or e2fsprogs would wait for another machine's mount.
            FormatError: it is damaged, or no ext4.
        """
        with self.copy.open("rb") as file:
            content = os.fstat(file.fileno()).st_size
        file_system = read_ext4(self._read_at, content)
        if file_system.needs_recovery:
            raise UnsafeImage(
                "the journal of the boot partition wants replay: the disk was in use when it was copied;"
                " start the machine once more and shut it down, or take another copy"
            )
        features = sorted(
            each for each in file_system.features if each in _UNSUPPORTED or each.startswith("FEATURE_")
        )
        if features:
            raise UnsafeImage(
                f"the boot partition has the feature {', '.join(features)}, which is not supported: make the"
                " file system without, as CoreOS does"
            )
        return file_system

    def check(self) -> None:
        """Raise UnsafeImage unless e2fsck finds the file system clean."""
        try:
            self.workspace.run(["e2fsck", "-fn", self.copy.name])
        except ConversionFailed:
            raise UnsafeImage("e2fsck finds the file system of the boot partition damaged") from None

    def apply(self, file_system: Ext4, edits: Sequence[BootEdit]) -> None:
        """Make the edits, and check them by e2fsck and by reading them.

        Raises:
            NoRoom: the file system has no room for them.
            ConversionFailed: debugfs did not do as it should.
        """
        block_size = file_system.block_size
        self._check_room(edits, block_size)
        changed = [edit for edit in edits if isinstance(edit, ChangedFile)]
        printed = self._run_debugfs([*self._new(edits), *_resize(changed, block_size)])
        found = _MAPPED.findall(printed)
        mapped = {(int(inode), int(block)): int(stored) for inode, block, stored in found}
        self._run_debugfs(
            f"set_inode_field <{inode}> bmap[{block}] {stored}" for (inode, block), stored in mapped.items()
        )
        with self.copy.open("r+b") as file:
            for edit in changed:
                _write_blocks(file.fileno(), edit, block_size, mapped)
        try:
            self.check()
            check_edits(self.read().root, list(edits))
        except (FormatError, UnsafeImage) as error:
            raise ConversionFailed(
                f"debugfs did not edit the boot partition as it should: {error.detail}"
            ) from None

    def _new(self, edits: Sequence[BootEdit]) -> Iterator[str]:
        """Yield the commands that make new files, whose contents are in files beside the copy."""
        for number, edit in enumerate(edits):
            if isinstance(edit, ChangedFile):
                continue
            name = '"/{}"'.format(edit.path.replace('"', '""'))  # a quote is doubled for debugfs
            if isinstance(edit, NewDirectory):
                yield f"mkdir {name}"
                yield f"set_inode_field {name} mode 0{0o040000 | edit.mode:o}"
            else:
                source = self.copy.with_name(f"new-{number}")
                source.touch(mode=0o600)
                source.write_bytes(edit.content)
                yield f"write {source.name} {name}"
                yield f"set_inode_field {name} mode 0{0o100000 | edit.mode:o}"
            yield f"set_inode_field {name} uid 0"
            yield f"set_inode_field {name} gid 0"

    def _run_debugfs(self, commands: Iterator[str] | Sequence[str]) -> str:
        """Run commands, and return debugfs's output; it takes the time of the last write for the time.

        So equal disks and customizations give equal bytes.
        """
        now = int.from_bytes(self._read_at(_SUPERBLOCK + _WRITTEN_AT, 4), "little")
        script = "".join(f"{command}\n" for command in commands).encode()
        command = ["env", f"E2FSPROGS_FAKE_TIME={now}", "debugfs", "-w", "-f", "-", self.copy.name]
        size = self.copy.stat().st_size  # it has holes
        return self.workspace.run(command, stdin=script, file_bytes=size).decode(errors="replace")

    def _check_room(self, edits: Sequence[BootEdit], block_size: int) -> None:
        superblock = self._read_at(_SUPERBLOCK, 1024)

        def number(offset: int) -> int:
            return int.from_bytes(superblock[offset : offset + 4], "little")

        free = number(_FREE_BLOCKS) | number(_FREE_BLOCKS_HIGH) << 32
        new = [edit for edit in edits if not isinstance(edit, ChangedFile)]
        sizes = [len(edit.content) for edit in new if isinstance(edit, NewFile)]
        sizes += [edit.size - edit.old_size for edit in edits if isinstance(edit, ChangedFile)]
        needed = sum(-(-max(size, 0) // block_size) + 1 for size in sizes) + _BLOCKS_OF_DIRECTORIES
        if needed > free or len(new) > number(_FREE_INODES):
            raise NoRoom(
                f"the boot partition has {free * block_size} bytes and {number(_FREE_INODES)} inodes free;"
                f" the customization needs up to {needed * block_size} bytes and {len(new)} inodes"
            )

    def _read_at(self, offset: int, length: int) -> bytes:
        with self.copy.open("rb") as file:
            return os.pread(file.fileno(), length, offset)


def _resize(changed: Sequence[ChangedFile], block_size: int) -> Iterator[str]:
    """Yield the commands that give files their new sizes, and then tell where their changed blocks are."""
    for edit in changed:
        old, new = (-(-size // block_size) for size in (edit.old_size, edit.size))
        if new > old:
            yield f"fallocate <{edit.inode}> {old} {new - 1}"
        elif new < old:
            yield f"punch <{edit.inode}> {new}"
        yield f"set_inode_field <{edit.inode}> size {edit.size}"
    for edit in changed:
        for block in range(edit.offset // block_size, -(-edit.size // block_size)):
            yield f"bmap <{edit.inode}> {block}"


def _write_blocks(
    descriptor: int, edit: ChangedFile, block_size: int, mapped: dict[tuple[int, int], int]
) -> None:
    """Write the content of a file into its blocks, and zeros after its end."""
    position = edit.offset
    content = edit.content + bytes(-edit.size % block_size)
    while content:
        block, start = divmod(position, block_size)
        stored = mapped.get((edit.inode, block), 0)
        if not stored:
            raise ConversionFailed(
                f"debugfs allocated no block {block} for /{edit.path} of the boot partition"
            )
        piece, content = content[: block_size - start], content[block_size - start :]
        os.pwrite(descriptor, piece, stored * block_size + start)
        position += len(piece)

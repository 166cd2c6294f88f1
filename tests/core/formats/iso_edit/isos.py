"""ISOs of the layouts that boot media have, by xorriso and genisoimage, and what other tools read of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso_edit.editor import IsoEditor
from tests.acceptance.clients import needs_client, run_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from image_service.core.base_file import BaseFile
    from image_service.core.formats.iso_edit.editor import IsoPlan

FILES: Mapping[str, bytes] = {
    "boot/grub/grub.cfg": b"set timeout=-1\nmenuentry live { linux /boot/vmlinuz quiet --- splash }\n",
    "boot/vmlinuz": bytes(range(256)) * 40,
    "boot/initrd.img": b"\x1f\x8b" + b"initrd" * 9000,
    "EFI/BOOT/grub.cfg": b"source /boot/grub/grub.cfg\n",
    "isolinux/isolinux.cfg": b"default live\nprompt 0\n",
    "a file with blanks.txt": b"blanks",
    "empty": b"",
    **{f"pool/p{n:02}/package-with-a-long-name_{n}.0-1_amd64.deb": b"deb %d" % n for n in range(40)},
}
_XORRISO = ("xorriso", "-as", "mkisofs", "-quiet", "-V", "EDITED", "--modification-date=2025052312345600")
_GENISOIMAGE = ("genisoimage", "-quiet", "-V", "EDITED")
_ESP = ("-append_partition", "2", "0xef", "{esp}")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "rock-ridge-and-joliet": (*_XORRISO, "-r", "-J"),
    "hybrid-gpt": (*_XORRISO, "-r", "-J", "-partition_offset", "16", *_ESP, "-appended_part_as_gpt"),
    "appended-esp-in-mbr": (
        *(*_XORRISO, "-r", "-partition_offset", "16", *_ESP),
        *("-e", "--interval:appended_partition_2:all::", "-no-emul-boot"),
    ),
    "isohybrid": (*_XORRISO, "-r", "--protective-msdos-label", "-part_like_isohybrid"),
    "level-4": (*_GENISOIMAGE, "-r", "-J", "-iso-level", "4"),
    "joliet-alone": (*_GENISOIMAGE, "-J", "-joliet-long"),
}


class MemoryFile:
    """A base file in memory."""

    path = "memory"
    residency = None
    descriptor = -1

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.reads: list[int] = []

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads.append(length)
        return self.data[offset : offset + length]


def base_of(content: bytes | MemoryFile) -> ExtentMap:
    file = MemoryFile(content) if isinstance(content, bytes) else content
    return ExtentMap((FileExtent(cast("BaseFile", file), 0, file.size),))


@cache
def make_iso(layout: str) -> bytes:
    """Return an ISO with `FILES`."""
    command = COMMANDS[layout]
    needs_client(command[0])
    with TemporaryDirectory() as name:
        directory = Path(name)
        tree = directory / "tree"
        for path, content in FILES.items():
            file = tree / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        esp = directory / "esp"
        esp.write_bytes(b"ESP." * (256 << 10))
        out = directory / "out.iso"
        words = [word.format(esp=esp) for word in command]
        subprocess.run([*words, "-o", str(out), str(tree)], check=True, capture_output=True)
        return out.read_bytes()


def edit(data: bytes, puts: Mapping[str, bytes]) -> tuple[bytes, IsoPlan]:
    """Return an edited ISO, and its plan."""
    base = base_of(data)
    editor = IsoEditor(base)
    for path, content in puts.items():
        editor.put(path, (Literal(content),))
    plan = editor.finish()
    edited = plan.apply(base)
    return edited.read_at(0, edited.size), plan


def _remove(tree: Path) -> None:
    """Remove a tree, if there is one, whose directories are read-only, as those of an ISO."""
    for directory, _, _ in os.walk(tree):
        Path(directory).chmod(0o700)
    if tree.exists():
        shutil.rmtree(tree)


def extract(data: bytes, directory: Path, *options: str) -> dict[str, bytes]:
    """Return the files of an ISO, which xorriso writes to ``files`` of a directory."""
    image, tree = directory / "read.iso", directory / "files"
    image.write_bytes(data)
    _remove(tree)
    program = needs_client("xorriso")
    command = [program, *options, "-indev", str(image), "-osirrox", "on", "-extract", "/", str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"FAILURE|SORRY|FATAL", done.stderr), done.stderr
    found = {str(file.relative_to(tree)): file.read_bytes() for file in tree.rglob("*") if file.is_file()}
    found.pop("boot.catalog", None)  # which xorriso adds
    return found


def trees_by_xorriso(
    isos: Sequence[tuple[bytes, tuple[str, ...]]], directory: Path
) -> Iterator[dict[str, bytes]]:
    """Yield the files of ISOs as one xorriso, whose start takes most of the time, finds them.

    Args:
        isos: each with the options by which it is read.
    """
    command = [needs_client("xorriso")]
    for number, (data, options) in enumerate(isos):
        image = directory / f"read{number}.iso"
        image.write_bytes(data)
        command += [*options, "-indev", str(image), "-find", "/", "-type", "f", "-exec", "report_lba", "--"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"FAILURE|SORRY|FATAL", done.stderr), done.stderr
    _, *reports = done.stdout.split("Report layout:")
    for (data, _), report in zip(isos, reports, strict=True):
        yield {path: data[at : at + size] for path, at, size in _files_of(report)}


def _files_of(report: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, offset and size of the files in a report of xorriso."""
    for extent, block, size, path in re.findall(
        r"^File data lba: *(\d+) , *(\d+) , *\d+ , *(\d+) , '/(.*)'$", report, re.MULTILINE
    ):
        assert extent == "0", path
        if path != "boot.catalog":  # which xorriso adds
            yield path, int(block) * SECTOR, int(size)


def joliet_files_by_isoinfo(data: bytes, directory: Path) -> set[str]:
    """Return the paths of the files in the tree of Joliet."""
    image = directory / "listed.iso"
    image.write_bytes(data)
    listed = run_client("isoinfo", "-J", "-j", "iso8859-1", "-f", "-i", image).decode("latin-1").splitlines()
    paths = [path.removesuffix(";1").lstrip("/") for path in listed]
    return {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}


def faults_by_isovfy(data: bytes, directory: Path) -> int:
    image = directory / "verified.iso"
    image.write_bytes(data)
    done = subprocess.run([needs_client("isovfy"), image], capture_output=True, text=True, check=False)
    return len([line for line in done.stdout.splitlines() if "****" in line])


def problems_by_sgdisk(data: bytes, directory: Path) -> int:
    image = directory / "partitioned.iso"
    image.write_bytes(data)
    done = subprocess.run([needs_client("sgdisk"), "-v", image], capture_output=True, text=True, check=False)
    found = re.search(r"Identified (\d+) problems", done.stdout)
    return int(found[1]) if found else 0

"""File systems for tests, made by the tools that make real ones, and archives with them.

Two images are kept, since the mkfs.erofs of Debian 12 cannot make what CoreOS has. They hold `OSTREE_FILES`,
and Debian 13's (1.8.6) made them with

    mkfs.erofs -T0 -U00000000-0000-0000-0000-000000000000 --all-root -zlzma,level=6 -C8192 OPTIONS IMAGE TREE

and ``-Eall-fragments,fragdedupe=inode``, as CoreOS had at first, or ``-Efragments``, as it has from 2025-11
on. CoreOS's extents have up to 1 MiB (``-C1048576``).
"""

from __future__ import annotations

import hashlib
import lzma
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.reading import Span, SpanReader
from tests.acceptance.clients import run_client
from tests.core.formats.reading import MeteredReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.formats.filesystems.file_tree import TreeNode

NMSTATECTL = "usr/bin/nmstatectl"
DEPLOYMENT = f"ostree/deploy/rhcos/deploy/{'0123456789abcdef' * 4}.0"
_FIXTURES = Path(__file__).parent / "erofs"
_BLOCK = 32  # bytes that SHA-256 gives


def noise(size: int, bits: int = 8) -> bytes:
    """Pseudorandom bytes that no compressor reduces below ``bits / 8`` of their size; always the same."""
    blocks = (hashlib.sha256(b"%d" % number).digest() for number in range(-(-size // _BLOCK)))
    table = bytes(value & (1 << bits) - 1 for value in range(256))
    return b"".join(blocks)[:size].translate(table)


def executable(size: int) -> bytes:
    """Bytes that compress like a program: code a little, tables well, and zeros."""
    quarter = size // 4
    code, table = noise(quarter, 6), b"".join(b"%08d entry\n" % number for number in range(quarter // 15))
    return (code + table + bytes(quarter) + code[::-1]).ljust(size, b"\x7f")


FILES: dict[str, bytes] = {
    NMSTATECTL: executable(300_000),
    "empty": b"",
    "one": b"1",
    **{f"sizes/{size}": executable(size) for block in (4096, 131072) for size in range(block - 1, block + 2)},
    **{f"sizes/noise-{size}": noise(size) for size in (5, 4095, 4096, 4097)},
    "sizes/zeros": bytes(300_000),
    "sizes/noise-zeros-noise": noise(140_000) + bytes(280_000) + noise(7_000),
    "sizes/text": b"one line of many\n" * 20_000,
    "a/b/c/d/e/\N{LATIN SMALL LETTER A WITH DIAERESIS}": b"deep",
}
"""What all file systems hold that are read in full."""

LARGE: dict[str, bytes] = {f"large/{'x' * 100}{number}": b"%d" % number for number in range(600)}
"""A directory of more than 64 KiB, which the file systems also hold."""

OSTREE_FILES: dict[str, bytes] = {
    f"{DEPLOYMENT}/{NMSTATECTL}": (noise(25_000, 5) + noise(9_000) + b"text\n" * 9_000 + noise(25_000, 5)),
    f"{DEPLOYMENT}.origin": b"[origin]\n",
    "ostree/repo/config": b"[core]\nmode=bare\n",
    "boot/loader.conf": b"timeout=1\n" * 30,
}


def write_tree(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a directory, and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def label(root: Path) -> None:
    """Give all nodes extended attributes, as SELinux does; skips the test where there are none."""
    for path in (root, *root.rglob("*")):
        try:
            os.setxattr(path, "security.selinux", b"system_u:object_r:usr_t:s0", follow_symlinks=False)
        except OSError as error:
            pytest.skip(f"no extended attributes: {error}")


def make_squashfs(tree: Path, options: str) -> bytes:
    """Return a squashfs of a directory, made by mksquashfs."""
    image = tree.with_suffix(".squashfs")
    run_client("mksquashfs", tree, image, "-noappend", "-no-progress", "-quiet", *options.split())
    return image.read_bytes()


def make_erofs(tree: Path, options: str) -> bytes:
    """Return an erofs of a directory, made by mkfs.erofs."""
    image = tree.with_suffix(".erofs")
    image.unlink(missing_ok=True)
    run_client("mkfs.erofs", *options.split(), image, tree)
    return image.read_bytes()


@cache
def erofs_fixture(name: str) -> bytes:
    """Return one of the stored images."""
    return lzma.decompress((_FIXTURES / f"{name}.erofs.xz").read_bytes())


def window(image: bytes, limit: int = 1 << 40) -> SpanReader:
    """Return a reader of an image in memory, of at most ``limit`` bytes in all."""
    return SpanReader(MeteredReader(image, limit), Span("root", 0, len(image)))


def patched(image: bytes, offset: int, data: bytes) -> bytes:
    """Return an image with other bytes at an offset."""
    return image[:offset] + data + image[offset + len(data) :]


def read_all(root: TreeNode, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the contents of files of an image."""
    return {name: find_node(root, name).read() for name in files}


def cpio(*members: tuple[str, bytes], name_length: int = 0) -> bytes:
    """Return an uncompressed newc archive, with names padded to a length, and no trailer."""
    return b"".join(_member(name, content, name_length) for name, content in members)


def _member(name: str, content: bytes, name_length: int) -> bytes:
    named = name.encode().ljust(max(len(name) + 1, name_length), b"\0")
    fields = [0] * 13
    fields[1], fields[6], fields[11] = 0o100644, len(content), len(named)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + named
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)

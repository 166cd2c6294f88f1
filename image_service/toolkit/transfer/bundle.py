"""Image bundles: parts are joined, decrypted, decompressed and unpacked as one stream into the image.

One part at a time is in memory, and verified before its bytes are used. The tar's digest is verified before
the image gets its name.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zlib
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from image_service.common.transfer.bundle_manifest import parse_bundle_manifest
from image_service.common.transfer.client import TransientFailure
from image_service.common.transfer.uploaded_parts import bundle_part_url
from image_service.core.errors import FormatError, TransferFailed, Unprocessable
from image_service.core.formats.disk.model import DiskFormat
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.transfer.bundle_keys import BundleKeys
from image_service.toolkit.transfer.fetch import check_size, describe_image
from image_service.toolkit.transfer.parallel import TransferMeter, run_one

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.common.transfer.bundle_manifest import BundleManifest, BundlePart
    from image_service.toolkit.transfer.fetch import FetchedImage, FetchOptions, ManifestSource
    from image_service.toolkit.workspace.workspace import Workspace

MAX_PART_BYTES = 64 << 20
_BLOCK = 1 << 20
_HOLE = 64 << 10  # so many zeros become one
_MAX_HEADER_BYTES = 4 << 20  # of the tar; the map of a sparse file may have some 100,000 entries
_GZIP = 16 + zlib.MAX_WBITS
_DAMAGED = "the bundle's content is damaged, or was encrypted with another key"
_TAR_ERRORS = (tarfile.TarError, ValueError, LookupError, ArithmeticError, EOFError)


def fetch_bundle(
    source: ManifestSource, out: Path, options: FetchOptions, workspace: Workspace
) -> FetchedImage:
    """Fetch and unpack a bundle, inspect the image, and give it its name.

    Raises:
        Unprocessable: there is no key, or a key is not what it must be.
        UnsafeImage: the signature is invalid, the key another one, the image unsafe.
        FormatError: the content is damaged, or not what the manifest says.
        TransferFailed: a part is not to be had, or has another digest.
        NoRoom, TimedOut: a limit is exceeded.
        OSError: a file cannot be read or written.
    """
    if options.key is None:
        raise Unprocessable("an image bundle is encrypted: --key names the RSA key that decrypts it")
    keys = BundleKeys.load(options.key, options.certificate)
    bundle = parse_bundle_manifest(source.text)
    keys.verify(bundle)
    key, vector = keys.decrypt(bundle)
    check_size(bundle.size, options)
    workspace.reserve(bundle.size, "the image", out)
    workspace.progress.start("download", bundle.bundled_size)
    encrypted = _encrypted_blocks(bundle, source, workspace)
    tar = _TarBytes(_decompressed(_decrypted(encrypted, key, vector)))
    with workspace.output(out) as path:
        try:
            _unpack(tar, path, bundle.size, workspace)
        except _TAR_ERRORS as error:
            reason = str(error) if isinstance(error, tarfile.TarError) else "a header is invalid"
            raise FormatError(f"the bundle's tar is damaged: {reason}") from None
        if tar.sha1.hexdigest() != bundle.sha1:
            raise FormatError("the bundle's tar has another SHA1 than its manifest says")
        workspace.progress.finish()
        name = workspace.name_of(path)
        with open_image(path, DiskFormat.RAW.value, pace=workspace.pace, name=name) as image:
            virtual_size = image.disk.virtual_size
        return describe_image(path, DiskFormat.RAW.value, virtual_size, options, workspace)


def _encrypted_blocks(
    bundle: BundleManifest, source: ManifestSource, workspace: Workspace
) -> Iterator[bytes]:
    meter = TransferMeter(workspace)
    left = bundle.bundled_size
    for part in bundle.parts:
        content = _read_part(part, source, workspace)
        left -= len(content)
        for start in range(0, len(content), _BLOCK):
            block = content[start : start + _BLOCK]
            meter.add(len(block))
            yield block
    if left:
        raise FormatError(
            f"the bundle's parts have {bundle.bundled_size - left} bytes,"
            f" but its bundled_size is {bundle.bundled_size}"
        )


def _read_part(part: BundlePart, source: ManifestSource, workspace: Workspace) -> bytes:
    if isinstance(source.base, Path):
        content = _read_beside(source.base, part.file_name)
        if _sha1_of(content) != part.sha1:
            raise TransferFailed(f"{source.base / part.file_name} has another SHA1 than its manifest says")
        return content
    url = bundle_part_url(source.base, part)

    def attempt() -> bytes:
        name = f"the bundle's part {part.file_name}"
        with source.client.send("GET", url, name, length=MAX_PART_BYTES) as response:
            if response.status != HTTPStatus.OK:
                raise response.failure()
            content = response.read(MAX_PART_BYTES)
        if _sha1_of(content) != part.sha1:
            raise TransientFailure(f"{url} has another SHA1 than its manifest says")
        return content

    return run_one(lambda: source.client.retry(attempt), workspace, source.client.abort)


def _read_beside(directory: Path, name: str) -> bytes:
    descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_PART_BYTES:
            raise TransferFailed(f"{directory / name} is not a file of at most {MAX_PART_BYTES} bytes")
        return file.read(status.st_size)


def _sha1_of(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _decrypted(blocks: Iterator[bytes], key: bytes, vector: bytes) -> Iterator[bytes]:
    decryptor = Cipher(AES128(key), CBC(vector)).decryptor()
    unpadder = PKCS7(AES128.block_size).unpadder()
    for block in blocks:
        yield unpadder.update(decryptor.update(block))
    try:
        yield unpadder.update(decryptor.finalize()) + unpadder.finalize()
    except ValueError:
        raise FormatError(_DAMAGED) from None


def _decompressed(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of bounded size of one gzip member, which must be all."""
    stream = zlib.decompressobj(_GZIP)
    try:
        for block in blocks:
            packed = block
            while packed and not stream.eof:
                yield stream.decompress(packed, _BLOCK)
                packed = stream.unconsumed_tail
            if stream.unused_data or (packed and stream.eof):
                raise FormatError(_DAMAGED)
        while not stream.eof and (rest := stream.decompress(stream.unconsumed_tail, _BLOCK)):
            yield rest
    except zlib.error:
        raise FormatError(_DAMAGED) from None
    if not stream.eof:
        raise FormatError(_DAMAGED)


class _TarBytes:
    """The tar as a file that tarfile reads; bounded, and digested."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._buffer = b""
        self.left = _MAX_HEADER_BYTES
        self.sha1 = hashlib.sha1(usedforsecurity=False)

    def read(self, count: int) -> bytes:
        """Return as many bytes, fewer only at the end; FormatError beyond the limit."""
        while len(self._buffer) < count and (block := next(self._blocks, None)) is not None:
            self._buffer += block
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        self.left -= len(data)
        if self.left < 0:
            raise FormatError("the bundle's tar is larger than its manifest says, or its header is too large")
        self.sha1.update(data)
        return data


def _unpack(tar: _TarBytes, path: Path, size: int, workspace: Workspace) -> None:
    """Write the only member, whose name is not used."""
    with (
        tarfile.open(fileobj=tar, mode="r|", bufsize=_BLOCK // 4) as archive,  # type: ignore[call-overload]
        path.open("r+b") as image,
    ):
        member = archive.next()
        if member is None or not member.isreg() or member.size != size:
            raise FormatError(f"the bundle's tar does not begin with a file of {size} bytes")
        _check_map(member)
        content = archive.extractfile(member)
        if content is None:
            raise FormatError("the bundle's tar has no file")
        tar.left += size
        image.truncate(size)
        for start in range(0, size, _HOLE):
            block = content.read(min(_HOLE, size - start))
            if not block:
                raise FormatError("the bundle's tar ends within its file")
            if block.strip(b"\0"):
                image.write(block)
            else:
                image.seek(len(block), os.SEEK_CUR)
            workspace.check()
        tar.left = min(tar.left, _MAX_HEADER_BYTES)
        if archive.next() is not None:
            raise FormatError("the bundle's tar has more than one file")
        while tar.read(_BLOCK):
            workspace.check()


def _check_map(member: tarfile.TarInfo) -> None:
    """Raise FormatError if the runs of a sparse file are not in order, or outside of it."""
    found: Any = member.sparse or ()  # a list of pairs; the type says a number
    runs = [run for run in found if run != (0, 0)]  # with which GNU tar fills a header of fewer than four
    end = 0
    for start, length in runs:
        if start < end or length < 0 or start + length > member.size:
            raise FormatError("the bundle's tar has a map of a sparse file that is not in order")
        end = start + length

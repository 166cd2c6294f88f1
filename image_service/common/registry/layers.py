"""Files in the layers of a container image: found from the uppermost layer on, and read while it is streamed.

A layer is a tar, as it is or packed by gzip or zstd. A lower layer counts as far as those above it have
neither the file nor a whiteout of it: an empty file ``.wh.NAME`` hides NAME, and ``.wh..wh..opq`` what else
its directory has (image specification, layer.md).
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import sys
import tarfile
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from image_service.common.registry.errors import RegistryFailed
from image_service.core.errors import FormatError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.common.registry.client import RegistryClient, ResolvedImage
    from image_service.common.registry.connections import RegistryCall
    from image_service.common.registry.manifests import BlobDescriptor

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_BLOCK_BYTES = 1024 * 1024
_MAX_HEADER_BYTES = 16 * 1024 * 1024
"""Between the contents of two files: tarfile keeps what extended headers announce in memory."""
_MAX_LINKS = 8
_TAR_ERRORS = (
    *(tarfile.TarError, ValueError, LookupError, ArithmeticError, EOFError),
    *(gzip.BadGzipFile, zlib.error, zstd.ZstdError),
)


class WriteFile(Protocol):
    """Receives a file that was found; once more, from the beginning, if the layer has it twice."""

    def __call__(self, name: str, size: int, /) -> Callable[[bytes], object]:
        """Return what gets the content of the file that `name` was asked for, block by block."""


@attrs.define
class _LayerSearch:
    """What is still to be found: paths, by the names that were asked for.

    Args:
        found: names that have their file.
        hidden: names whose file no lower layer has.
        removed: paths that lower layers do not have any more.
    """

    paths: dict[str, str]
    found: dict[str, str] = attrs.field(factory=dict)
    hidden: set[str] = attrs.field(factory=set)
    removed: set[str] = attrs.field(factory=set)

    @property
    def pending(self) -> list[str]:
        return [name for name in self.paths if name not in self.found and name not in self.hidden]


class _Linked(Exception):
    """A path leads to another one, with which the search begins again."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.name = name
        self.path = path


def read_files(
    client: RegistryClient, image: ResolvedImage, names: list[str], write: WriteFile, call: RegistryCall
) -> dict[str, str]:
    """Read files of an image; the digests of all layers that were read are verified when this returns.

    Args:
        names: paths without a slash before them; ``*`` as the last component is the only file of a directory.
        write: gets each file; what it got counts only when this has returned.

    Returns:
        for each name that was found, the path of its file.

    Raises:
        FormatError: what has the name is not a file, or a layer is not a tar.
        RegistryFailed: a layer cannot be fetched, or has another digest.
        Interrupted: the service stops.
    """
    paths = {name: name for name in names}
    for _ in range(_MAX_LINKS):
        search = _LayerSearch(dict(paths))
        try:
            for layer in image.manifest.file_systems:
                if search.pending:
                    _read_layer(client, image, layer, search, write, call)
        except _Linked as link:
            paths[link.name] = link.path
        else:
            return search.found
    raise FormatError(f"{', '.join(names)} has more than {_MAX_LINKS} links")


def _read_layer(  # noqa: PLR0913, PLR0917 - of one search
    client: RegistryClient,
    image: ResolvedImage,
    layer: BlobDescriptor,
    search: _LayerSearch,
    write: WriteFile,
    call: RegistryCall,
) -> None:
    with closing(client.read_blob(image.reference, layer, call)) as blocks:
        packed = _PackedLayer(blocks, layer.digest)
        try:
            _search_tar(packed, search, write)
        except _TAR_ERRORS as error:
            reason = str(error) if isinstance(error, tarfile.TarError) else "it is damaged"
            raise FormatError(f"layer {layer.digest} is not a tar: {reason:.100}") from None
        while packed.read(_BLOCK_BYTES):
            pass
        if packed.digest != layer.digest:
            raise RegistryFailed(f"{image.reference}: the digest of layer {layer.digest} is {packed.digest}")


def _search_tar(packed: _PackedLayer, search: _LayerSearch, write: WriteFile) -> None:
    tar = _LayerTar(packed)
    hidden: set[str] = set()
    removed: set[str] = set()
    with tarfile.open(fileobj=tar, mode="r|", bufsize=_BLOCK_BYTES) as archive:  # type: ignore[call-overload]
        while (member := archive.next()) is not None:
            archive.members.clear()  # or all headers would be kept
            tar.limit = archive.offset + _MAX_HEADER_BYTES
            path = posixpath.normpath(member.name).lstrip("/")
            hidden |= {name for name in search.pending if _hides(path, search.paths[name])}
            directory, _, base = path.rpartition("/")
            if base.startswith(_WHITEOUT):
                removed.add(posixpath.join(directory, base.removeprefix(_WHITEOUT)))
            for name in [*search.pending, *search.found] if path not in search.removed else ():
                if _matches(search.paths[name], path, member):
                    _take(archive, member, path, name, search, write)
                    break
                if name not in search.found and _is_above(path, search.paths[name]) and member.issym():
                    rest = search.paths[name][len(path) :]
                    raise _Linked(name, _target(path, member.linkname) + rest)
    search.hidden |= hidden - search.found.keys()
    search.removed |= removed


def _take(  # noqa: PLR0913, PLR0917 - of one search
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    name: str,
    search: _LayerSearch,
    write: WriteFile,
) -> None:
    if search.found.get(name, path) != path:
        raise FormatError(f"{name} is several files: {search.found[name]!r:.100}, {path!r:.100}")
    if member.issym():
        raise _Linked(name, _target(path, member.linkname))
    if member.islnk():
        raise _Linked(name, posixpath.normpath(member.linkname).lstrip("/"))
    content = archive.extractfile(member)
    if not member.isreg() or content is None:
        raise FormatError(f"{path!r:.100} is not a file")
    search.found[name] = path
    put = write(name, member.size)
    while block := content.read(_BLOCK_BYTES):
        put(block)


def _matches(wanted: str, path: str, member: tarfile.TarInfo) -> bool:
    directory, _, name = wanted.rpartition("/")
    if name != "*":
        return path == wanted
    is_file = member.isreg() or member.issym() or member.islnk()
    found, _, base = path.rpartition("/")
    return is_file and found == directory and not base.startswith(_WHITEOUT)


def _hides(path: str, wanted: str) -> bool:
    """Return True if a member is a whiteout of what is wanted."""
    directory, _, name = path.rpartition("/")
    prefix = f"{directory}/" if directory else ""
    if name == _OPAQUE:
        return wanted.startswith(prefix)
    if not name.startswith(_WHITEOUT):
        return False
    return f"{wanted}/".startswith(f"{prefix}{name.removeprefix(_WHITEOUT)}/")


def _is_above(path: str, wanted: str) -> bool:
    return wanted.startswith(f"{path}/")


def _target(path: str, link: str) -> str:
    """Return where a symbolic link leads, in the image."""
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(path), link)).lstrip("/")


class _PackedLayer:
    """A layer as a file; digested while it is read."""

    def __init__(self, blocks: Iterator[bytes], digest: str) -> None:
        self._blocks = blocks
        self._buffer = b""
        self._algorithm = digest.partition(":")[0]
        self._hash = hashlib.new(self._algorithm)

    @property
    def digest(self) -> str:
        """Of what was read."""
        return f"{self._algorithm}:{self._hash.hexdigest()}"

    def peek(self, count: int) -> bytes:
        """Return the next bytes, which stay to be read; fewer at the end."""
        while len(self._buffer) < count and (block := next(self._blocks, None)) is not None:
            self._buffer += block
        return self._buffer[:count]

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, at most `count`; none at the end."""
        if not self._buffer:
            self._buffer = next(self._blocks, b"")
        count = len(self._buffer) if count < 0 else count
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        self._hash.update(data)
        return data


class _LayerTar:
    """The tar in a layer as a file.

    Attributes:
        limit: position that reading must not pass: contents of files do not count, headers are bounded.
    """

    def __init__(self, packed: _PackedLayer) -> None:
        magic = packed.peek(4)
        self._file: Any = packed
        if magic[:2] == b"\x1f\x8b":
            self._file = gzip.GzipFile(fileobj=packed)  # type: ignore[call-overload]
        elif magic == b"\x28\xb5\x2f\xfd":
            self._file = zstd.ZstdFile(packed)  # type: ignore[call-overload]
        self._position = 0
        self.limit = _MAX_HEADER_BYTES

    def read(self, count: int) -> bytes:
        """Return as many bytes, fewer only at the end."""
        parts, left = [], count
        while left and (block := self._file.read(left)):
            parts.append(block)
            left -= len(block)
        self._position += count - left
        if self._position > self.limit + _BLOCK_BYTES:
            raise FormatError("a header in a layer's tar is too large")
        return b"".join(parts)

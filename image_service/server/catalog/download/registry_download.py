"""Downloads a file from an OCI registry in a thread: an artifact, a file in an image, or a payload's ISO.

An artifact that was interrupted is resumed, because its digest says which bytes are missing. A file in a
layer is extracted from the beginning again: where in the layer it is, only reading tells.
"""

from __future__ import annotations

import hashlib
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.layers import read_files
from image_service.common.registry.release import (
    IMAGE_REFERENCES,
    ReleaseDocuments,
    candidates,
    find_machine_os_images,
    iso_sha256,
)
from image_service.core.errors import BaseImageError, FormatError, Unavailable
from image_service.server.catalog.download.partial_file import OriginFile, PartialFile
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from image_service.common.registry.client import RegistryClient, ResolvedImage
    from image_service.common.registry.connections import RegistryCall
    from image_service.common.registry.manifests import BlobDescriptor
    from image_service.common.registry.references import RegistryFile

_BLOCK_BYTES = 1024 * 1024


@attrs.frozen
class RegistryDownload:
    """One download.

    Args:
        file: what is fetched.
        architecture: of the image, in the names of RPM.
        partial: the path to write to, as `PartialFile` does.
        report: called with the bytes so far and those of the whole; an exception from it ends the download.
    """

    client: RegistryClient
    file: RegistryFile
    architecture: str
    partial: Path
    call: RegistryCall
    report: Callable[[int, int | None], None]

    def run(self) -> None:
        """Complete the file.

        Raises:
            BaseImageError: the registry has another thing there than a base image.
            Unavailable: not fetched, or not completely; names registry, repository and digest.
            OSError: the file cannot be written.
            Interrupted: the service stops.
        """
        with _translated(self.file):
            image = self.client.resolve(self.file.reference, self.architecture, self.call)
            if self.file.is_release:
                self._extract_release(image)
            elif (layer := image.manifest.find_file(self.file.path)) is not None:
                self._download(image, layer)
            else:
                self._extract(image)

    def check(self) -> None:
        """Fetch manifests alone, so that a wrong name is known before it is needed; raises as `run`."""
        with _translated(self.file):
            image = self.client.resolve(self.file.reference, self.architecture, self.call)
            if not self.file.is_release:
                image.manifest.find_file(self.file.path)

    def _download(self, image: ResolvedImage, layer: BlobDescriptor) -> None:
        source = f"blob {layer.digest}"
        with PartialFile(self.partial, source) as output:
            if output.complete:
                self.report(output.length, output.length)
                return
            digest = hashlib.new(layer.digest.partition(":")[0])
            if output.origin_file.total == layer.size:
                self._digest_known(output.length, digest)
            else:
                output.restart(OriginFile(total=layer.size))
            self.report(output.length, layer.size)
            with closing(self.client.read_blob(image.reference, layer, self.call, output.length)) as blocks:
                for block in blocks:
                    digest.update(block)
                    output.append(block)
                    self.report(output.length, layer.size)
            found = f"{digest.name}:{digest.hexdigest()}"
            if found != layer.digest:
                output.restart(OriginFile())
                raise RegistryFailed(f"the digest of blob {layer.digest} is {found}")
            output.mark_complete()

    def _digest_known(self, length: int, digest: hashlib._Hash) -> None:
        with self.partial.open("rb") as known:
            while length:
                self.call.interruption.raise_if_interrupted()
                block = known.read(min(_BLOCK_BYTES, length))
                digest.update(block)
                length -= len(block)

    def _extract(self, image: ResolvedImage) -> None:
        path = self.file.path
        with PartialFile(self.partial, f"file {path} of {image.reference.digest}") as output:
            if output.complete:
                self.report(output.length, output.length)
                return

            def write(_name: str, size: int) -> Callable[[bytes], None]:
                output.restart(OriginFile(total=size))
                self.report(0, size)

                def put(block: bytes) -> None:
                    output.append(block)
                    self.report(output.length, size)

                return put

            output.restart(OriginFile())
            found = read_files(self.client, image, [path], write, self.call)
            if path not in found:
                raise FormatError(f"the image has no file /{path}")
            output.mark_complete()

    def _extract_release(self, payload: ResolvedImage) -> None:
        """Extract the ISO of a stream, from the image of the payload that has it."""
        with PartialFile(self.partial, f"{self.file.path} of release {payload.reference.digest}") as output:
            if output.complete:
                self.report(output.length, output.length)
                return
            output.restart(OriginFile())
            documents = ReleaseDocuments()
            read_files(self.client, payload, [IMAGE_REFERENCES], documents.write, self.call)
            if IMAGE_REFERENCES not in documents.contents:
                raise FormatError(f"the image is not a release payload: it has no {IMAGE_REFERENCES}")
            reference = find_machine_os_images(bytes(documents.contents[IMAGE_REFERENCES]))
            image = self.client.resolve(reference, self.architecture, self.call)
            places = candidates(self.file.path, self.architecture)
            isos = _PreferredFile(output, self.report, [place.iso for place in places])

            def write(name: str, size: int) -> Callable[[bytes], object]:
                return isos.write(name, size) if name in isos.paths else documents.write(name, size)

            names = [name for place in places for name in (place.iso, place.metadata)]
            found = read_files(self.client, image, names, write, self.call)
            place = next((each for each in places if each.iso in found), None)
            if place is None:
                raise FormatError(f"{reference} has no {' or '.join(isos.paths)}")
            metadata = documents.contents.get(place.metadata, b"")
            wanted, digest = iso_sha256(bytes(metadata), self.architecture), isos.digest.hexdigest()
            if wanted not in {None, digest}:
                raise FormatError(f"the SHA-256 of {place.iso} is {digest}; {place.metadata} says {wanted}")
            output.mark_complete()


@attrs.define
class _PreferredFile:
    """The one of several files that is kept, whatever their order in a layer.

    Args:
        paths: the preferred one first.
    """

    output: PartialFile
    report: Callable[[int, int | None], None]
    paths: list[str]
    digest: hashlib._Hash = attrs.field(factory=hashlib.sha256)
    _kept: int | None = None

    def write(self, path: str, size: int) -> Callable[[bytes], object]:
        """Keep a file, unless a preferred one is there."""
        rank = self.paths.index(path)
        if self._kept is not None and self._kept < rank:
            return lambda _: None
        self._kept, self.digest = rank, hashlib.sha256()
        self.output.restart(OriginFile(total=size))
        self.report(0, size)

        def put(block: bytes) -> None:
            self.digest.update(block)
            self.output.append(block)
            self.report(self.output.length, size)

        return put


@contextmanager
def _translated(file: RegistryFile) -> Iterator[None]:
    """Raise the errors of a base image in the place of those of its registry."""
    try:
        yield
    except FormatError as error:
        raise BaseImageError(f"{file}: {error.detail}") from None
    except RegistryFailed as error:
        seconds = parse_retry_after(error.retry_after)
        raise Unavailable(f"cannot fetch {file}: {error.reason}", retry_after_seconds=seconds) from None

"""Downloads a file from an OCI registry in a thread: an artifact, or a file in a layer of a container image.

An artifact that was interrupted is resumed, because its digest says which bytes are missing. A file in a
layer is extracted from the beginning again: where in the layer it is, only reading tells.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.layers import read_files
from image_service.core.errors import BaseImageError, FormatError, Unavailable
from image_service.server.catalog.download.partial_file import OriginFile, PartialFile
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Callable
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
        try:
            image = self.client.resolve(self.file.reference, self.architecture, self.call)
            layer = image.manifest.find_file(self.file.path)
            if layer is not None:
                self._download(image, layer)
            else:
                self._extract(image)
        except FormatError as error:
            raise BaseImageError(f"{self.file}: {error.detail}") from None
        except RegistryFailed as error:
            raise unavailable(self.file, error) from None

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

            def write(_path: str, size: int) -> Callable[[bytes], None]:
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


def unavailable(file: RegistryFile, error: RegistryFailed) -> Unavailable:
    """Return the error for a client of this service."""
    return Unavailable(
        f"cannot fetch {file}: {error.reason}", retry_after_seconds=parse_retry_after(error.retry_after)
    )

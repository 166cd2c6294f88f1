"""Making a release ready to be mirrored, in a thread: the digests of the ISO's parts, the signatures.

Both are remembered beside the ISO: the digests as long as it stays as it is, the signatures by what they
sign. A signature is kept only with the very bytes that it was made for: coreos-installer refuses a wrong one
even where it is told to do without.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.catalog.storage.digest import Sidecar
from image_service.coreos.stream_mirror import PublishedFile, PublishedRelease
from image_service.errors import Unavailable
from image_service.files.atomic import atomic_write
from image_service.files.base_file import ShortReadError
from image_service.streams.stream_refresh import read_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from image_service.concurrency.interruption import Interruption
    from image_service.coreos.stream_metadata import StreamArtifact
    from image_service.formats.iso9660 import IsoFile
    from image_service.images.base import BaseImage
    from image_service.streams.stream_refresh import Http
    from image_service.streams.streams import StreamRelease

MAX_SIGNATURE_BYTES = 64 * 1024
# A signature packet of RFC 9580 in either format, or one in ASCII armour
_SIGNATURE = re.compile(rb"[\x88-\x8b\xc2]|-----BEGIN PGP SIGNATURE-----")


@attrs.frozen
class MirroredFile:
    """A run of bytes of the ISO, or all of it.

    Args:
        name: as it is published.
        sha256: lower-case hex.
        offset: bytes.
        length: bytes.
        signature: detached OpenPGP signature; None: there is none, or it could not be had.
        awaited: whether it could not be had, but may be later.
    """

    name: str
    sha256: str
    offset: int
    length: int
    signature: bytes | None = attrs.field(default=None, repr=False)
    awaited: bool = False


@attrs.frozen
class MirroredRelease:
    """All that is served of a release.

    Args:
        wanted: the release.
        base: its ISO.
        iso: the whole of it.
        pxe: parts of it by their names in the metadata.
    """

    wanted: StreamRelease
    base: BaseImage
    iso: MirroredFile
    pxe: Mapping[str, MirroredFile]

    @property
    def files(self) -> tuple[MirroredFile, ...]:
        """Everything."""
        return (self.iso, *self.pxe.values())

    @property
    def held(self) -> PublishedRelease:
        """What the metadata says of it."""
        release = self.wanted.release
        pxe = {name: PublishedFile(file.name, file.sha256) for name, file in self.pxe.items()}
        iso = PublishedFile(self.iso.name, self.iso.sha256)
        return PublishedRelease(release.architecture, release.version, release.published, iso, pxe)


@attrs.frozen
class Preparation:
    """Makes releases ready.

    Args:
        data_dir: where digests and signatures are remembered.
        http: asks origins for signatures.
        interruption: ends it from another thread.
        claim: takes files in ``data_dir`` for ours: the image that they belong to, and their names.
    """

    data_dir: Path
    http: Http
    interruption: Interruption
    claim: Callable[..., None] = lambda *_: None

    def prepare(self, wanted: StreamRelease, base: BaseImage) -> MirroredRelease:
        """Make one release ready.

        Args:
            wanted: the release.
            base: its ISO.

        Raises:
            Unavailable: the ISO changed meanwhile.
            OSError: it cannot be read.
            Interrupted: the service stops.
        """
        release = wanted.release
        image = wanted.entry.file_name
        memory = self.data_dir / f"{image}.parts.json"
        self.claim(image, memory.name)
        sidecar = Sidecar(memory, base.file)
        parts = {
            "kernel": (base.layout.files.kernel, release.kernel),
            "initramfs": (base.layout.files.initrd, release.initramfs),
            "rootfs": (base.layout.files.rootfs, release.rootfs),
        }
        iso = MirroredFile(release.iso.name, base.sha256, 0, base.file.size)
        return MirroredRelease(
            wanted=wanted,
            base=base,
            iso=self._signed(wanted, iso, release.iso),
            pxe={
                name: self._part(wanted, base, sidecar, name, file, artifact)
                for name, (file, artifact) in parts.items()
                if file is not None and file.length
            },
        )

    def _part(  # noqa: PLR0913, PLR0917 - what is known of one part
        self,
        wanted: StreamRelease,
        base: BaseImage,
        sidecar: Sidecar,
        name: str,
        file: IsoFile,
        artifact: StreamArtifact | None,
    ) -> MirroredFile:
        key = f"{name}_sha256"
        digest = sidecar.get(key)
        if digest is None:
            try:
                digest = base.file.sha256(
                    file.offset, file.length, on_block=lambda _: self.interruption.raise_if_interrupted()
                )
            except ShortReadError:
                raise Unavailable("changed while it was read") from None
            sidecar.put(key, digest)
        published_as = artifact.name if artifact else _name(wanted, name)
        return self._signed(wanted, MirroredFile(published_as, digest, file.offset, file.length), artifact)

    def _signed(
        self, wanted: StreamRelease, file: MirroredFile, artifact: StreamArtifact | None
    ) -> MirroredFile:
        """The file with its signature, if these are the bytes that were published."""
        if artifact is None or artifact.signature is None or artifact.sha256 != file.sha256:
            return file
        path = self.data_dir / f"rhcos-{file.sha256}.sig"
        try:
            signature = path.read_bytes()
        except OSError:
            try:
                signature = self._fetch(artifact.signature)
            except Unavailable as error:
                Logger().info("{name} has no signature yet: {reason}", name=file.name, reason=error.detail)
                return attrs.evolve(file, awaited=True)
            self.claim(wanted.entry.file_name, path.name)
            with atomic_write(path) as target:
                target.write(signature)
        return attrs.evolve(file, signature=signature)

    def _fetch(self, url: str) -> bytes:
        with self.http.ask(url, {}, self.interruption) as answer:
            signature = read_body(answer, MAX_SIGNATURE_BYTES)
        if _SIGNATURE.match(signature) is None:
            raise Unavailable("what was fetched is no OpenPGP signature")
        return signature


def _name(wanted: StreamRelease, part: str) -> str:
    """What a part is called that the metadata has no name for."""
    suffix = "" if part == "kernel" else ".img"
    return f"coreos-{wanted.release.version}-live-{part}.{wanted.release.architecture}{suffix}"

"""Prepares a release for the mirror, in a thread: digests of the ISO's parts, and signatures.

Both are stored beside the ISO: the digests until the ISO changes, the signatures under the digest of the
bytes that they sign. A signature is published only with the very bytes it was made for: coreos-installer
refuses a wrong one even with ``--insecure``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.common.files.atomic import atomic_write
from image_service.core.errors import Unavailable
from image_service.core.families.coreos.stream_mirror import PublishedFile, PublishedRelease
from image_service.server.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES
from image_service.server.catalog.storage.digest import Sidecar, get_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.base_file import BaseFile
    from image_service.core.families.coreos.stream_metadata import StreamArtifact
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.streams.stream import StreamRelease

# A signature packet of RFC 9580 in either format, or one in ASCII armor
_SIGNATURE = re.compile(rb"[\x88-\x8b\xc2]|-----BEGIN PGP SIGNATURE-----")


@attrs.frozen
class MirroredFile(PublishedFile):
    """A range of the ISO, or all of it.

    Args:
        signature: detached OpenPGP signature; None: there is none, or it could not be fetched.
        is_signature_pending: True if it could not be fetched, but may be later.
        file: that it is a range of; None: the ISO.
    """

    offset: int
    length: int
    signature: bytes | None = attrs.field(default=None, repr=False)
    is_signature_pending: bool = False
    file: BaseFile | None = None


@attrs.frozen
class MirroredRelease:
    """The files of a release: its ISO, ranges of that by their names in the metadata, and further artifacts.

    Args:
        disks: by platform and format.
    """

    origin: StreamRelease
    base: BaseImage
    iso: MirroredFile
    pxe: Mapping[str, MirroredFile]
    disks: Mapping[tuple[str, str], MirroredFile] = attrs.field(factory=dict)

    @property
    def files(self) -> tuple[MirroredFile, ...]:
        """The ISO, its parts, and further artifacts."""
        return (self.iso, *self.pxe.values(), *self.disks.values())

    @property
    def is_signature_pending(self) -> bool:
        """True if a signature may be fetched later."""
        return any(file.is_signature_pending for file in (self.iso, *self.pxe.values()))

    @property
    def published(self) -> PublishedRelease:
        """The release as our metadata describes it."""
        release = self.origin.release
        return PublishedRelease(
            release.architecture,
            release.version,
            release.published,
            self.iso,
            self.pxe,
            release.original,
            self.disks,
        )


@attrs.frozen
class ReleasePreparer:
    """Prepares releases for the mirror.

    Args:
        claim: adds files of `data_dir` to the manifest: the image that they belong to, and their names.
    """

    data_dir: Path
    client: OriginClient
    interruption: Interruption
    claim: Callable[..., None] = lambda *_: None

    def prepare(self, desired: StreamRelease, base: BaseImage) -> MirroredRelease:
        """Prepare one release, whose ISO is `base`.

        Raises:
            Unavailable: the ISO changed while it was read.
            OSError: it cannot be read.
            Interrupted: the service stops.
        """
        release = desired.release
        image = desired.entry.file_name
        sidecar_path = self.data_dir / f"{image}.parts.json"
        self.claim(image, sidecar_path.name)
        sidecar = Sidecar(sidecar_path, base.file)
        parts = {
            "kernel": (base.iso.files.kernel, release.kernel),
            "initramfs": (base.iso.files.initrd, release.initramfs),
            "rootfs": (base.iso.files.rootfs, release.rootfs),
        }
        pxe = {}
        for name, (file, artifact) in parts.items():
            if file is None or not file.length:
                continue
            digest = get_sha256(base.file, sidecar, self.interruption, f"{name}_sha256", file)
            suffix = "" if name == "kernel" else ".img"
            default = f"coreos-{release.version}-live-{name}.{release.architecture}{suffix}"
            part = MirroredFile(artifact.name if artifact else default, digest, file.offset, file.length)
            pxe[name] = self.with_signature(image, part, artifact)
        iso = MirroredFile(release.iso.name, base.sha256, 0, base.file.size)
        return MirroredRelease(desired, base, self.with_signature(image, iso, release.iso), pxe)

    def with_signature(self, image: str, file: MirroredFile, artifact: StreamArtifact | None) -> MirroredFile:
        """Return a file of an image with its signature, if these are the bytes that were published."""
        if artifact is None or artifact.signature is None or artifact.sha256 != file.sha256:
            return file
        path = self.data_dir / f"rhcos-{file.sha256}.sig"
        try:
            signature = path.read_bytes()
        except OSError:
            try:
                with self.client.fetch(artifact.signature, {}, self.interruption) as response:
                    signature = response.read_all(MAX_SIGNATURE_BYTES)
                if _SIGNATURE.match(signature) is None:
                    raise Unavailable("the response is not an OpenPGP signature")  # noqa: TRY301 - like one that failed
            except Unavailable as error:
                Logger().info("{name} has no signature yet: {reason}", name=file.name, reason=error.detail)
                return attrs.evolve(file, is_signature_pending=True)
            self.claim(image, path.name)
            with atomic_write(path) as target:
                target.write(signature)
        return attrs.evolve(file, signature=signature)

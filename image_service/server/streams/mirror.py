"""The mirror: the releases that are stored here, published as streams are.

A release is published when its ISO is ready and the digests of its parts are known. The document of a stream
lists the newest such release of each architecture, and never goes back to an older one; that of a release is
published once all its architectures are, and then stays as it is.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from image_service.common.concurrency.interruption import Interrupted
from image_service.core.errors import ImageServiceError, NotFound, Unavailable
from image_service.core.extents import ExtentMap, FileExtent, Literal
from image_service.core.families.coreos.stream_mirror import (
    SIGNATURE_SUFFIX,
    PublishedStream,
    render_config_map,
    render_stream,
)
from image_service.core.images.boot_image import BootImage, make_etag
from image_service.core.images.reference import Kind, StreamConfigMapRef, StreamDocumentRef

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.reference import StreamRef
    from image_service.server.streams.mirrored_disks import MirroredDisks
    from image_service.server.streams.release_preparer import MirroredRelease
    from image_service.server.streams.stream import StreamRelease
    from image_service.server.streams.streams import Streams

RETRY_AFTER_SECONDS = 10
JSON = "application/json"
YAML = "application/yaml"
SIGNATURE = "application/pgp-signature"


class Mirror:
    """Publishes the releases of streams.

    Args:
        find_base_image: returns a base image that is ready, as ``Catalog.find_base_image``.
        in_thread: runs `prepare`, as ``ReleasePreparer.prepare``, which reads whole images.
        get_base_url: returns the prefix of the locations, without a slash at its end.
        disks: has further artifacts of releases; None: there are none.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913, PLR0917 - each replaced by tests
        self,
        streams: Streams,
        find_base_image: Callable[[str, str, Kind], BaseImage],
        in_thread: InThread,
        prepare: Callable[[StreamRelease, BaseImage], MirroredRelease],
        get_base_url: Callable[[], str],
        disks: MirroredDisks | None = None,
    ) -> None:
        self._streams = streams
        self._find_base_image = find_base_image
        self._in_thread = in_thread
        self._prepare = prepare
        self._get_base_url = get_base_url
        self._rendered: dict[tuple[str, str], tuple[list[MirroredRelease], BootImage]] = {}
        self._disks = disks
        if disks is not None:
            disks.on_change = self._rendered.clear
        self._mirrored: dict[StreamRelease, MirroredRelease] = {}
        self._preparing: dict[StreamRelease, Deferred[None]] = {}

    def update(self) -> None:
        """Start to prepare releases whose ISO is ready, and forget those that are not desired any more.

        To be called when a base image becomes ready or other releases are desired, and periodically: a
        signature may have become available.
        """
        desired = self._streams.desired
        kept = set(desired)
        self._rendered.clear()
        if self._disks is not None:
            self._disks.update(desired)
        self._mirrored = {
            release: mirrored for release, mirrored in self._mirrored.items() if release in kept
        }
        for release in desired:
            base = self._base_image(release)
            if base is None or release in self._preparing:
                continue
            mirrored = self._mirrored.get(release)
            is_current = mirrored is not None and mirrored.base is base and not mirrored.is_signature_pending
            if not is_current:
                self._start_preparing(release, base)

    async def wait_until_idle(self) -> None:
        """Wait until no release is being prepared; the preparer is interrupted separately."""
        await gatherResults(list(self._preparing.values()))

    def find_boot_image(self, ref: StreamRef) -> BootImage:
        """Return a published file.

        Raises:
            NotFound: there is no such stream, release, file or signature.
            Unavailable: the stream has none of its releases yet, or the release is not complete.
        """
        if isinstance(ref, StreamDocumentRef):
            return self.document(ref.name)
        if isinstance(ref, StreamConfigMapRef):
            return self.config_map(ref.name)
        return self.file(ref.stream, ref.version, ref.architecture, ref.name)

    def document(self, name: str) -> BootImage:
        """Return stream metadata; `name` is a stream, or a stream, ``-`` and a release."""
        stream, releases = self._find_releases(name)

        def render(base_url: str) -> bytes:
            return render_stream(stream, base_url, [mirrored.published for mirrored in releases])

        return self._render(f"{name}.json", JSON, releases, render)

    def config_map(self, name: str | None) -> BootImage:
        """Return stream metadata as the ConfigMap that OpenShift keeps.

        Args:
            name: of a stream, or of an OpenShift version with its streams; None: all streams.
        """
        keys = self._find_streams(name)
        current = {stream: self._current(stream) for stream in keys}

        def render(base_url: str) -> bytes:
            streams = [
                PublishedStream(stream, key, [mirrored.published for mirrored in current[stream]])
                for stream, key in keys.items()
            ]
            return render_config_map(base_url, streams, None if name in keys else name)

        releases = [mirrored for found in current.values() for mirrored in found]
        return self._render(f"{name or ''}/configmap.yaml", YAML, releases, render)

    def _find_releases(self, name: str) -> tuple[str, list[MirroredRelease]]:
        """Return the stream of a document, and the releases that it lists."""
        if name not in self._desired:
            for stream, desired in self._desired.items():
                listed = [each for each in desired if f"{stream}-{each.release.version}" == name]
                if listed:
                    return stream, [self._require(release) for release in listed]
        return name, self._current(name)

    def _find_streams(self, name: str | None) -> Mapping[str, str]:
        """Return the streams of a ConfigMap with their names in it, the default one first."""
        desired = self._desired
        if name is not None and name in desired:
            return {name: name}
        streams = {
            stream: stream if name is None else releases[0].key or stream
            for stream, releases in desired.items()
            if name in {None, releases[0].openshift_version}
        }
        if not streams:
            raise NotFound(f"there is no such stream; there are {', '.join(desired) or 'none'}")
        return streams

    def file(self, stream: str, version: str, architecture: str, name: str) -> BootImage:
        """Return a file of a release, or its signature."""
        for desired in self._desired.get(stream, ()):
            if (desired.release.version, desired.release.architecture) == (version, architecture):
                return _find_file(self._require(desired), name)
        raise NotFound("there is no such release")

    @property
    def _desired(self) -> Mapping[str, Sequence[StreamRelease]]:
        """The releases by stream."""
        by_stream: dict[str, list[StreamRelease]] = {}
        for desired in self._streams.desired:
            by_stream.setdefault(desired.stream, []).append(desired)
        return by_stream

    def _current(self, stream: str) -> list[MirroredRelease]:
        """Return the release of each architecture that the stream's document lists."""
        if stream not in self._desired:
            raise NotFound(f"there is no such stream; there are {', '.join(self._desired) or 'none'}")
        current: dict[str, MirroredRelease | None] = {}
        aliases = self._streams.aliases
        for desired in self._desired[stream]:
            architecture = desired.release.architecture
            if architecture not in current:
                mirrored = self._published(desired)
                # None: the release was listed before, and an older one must not replace it.
                if mirrored or aliases.get((stream, architecture)) == desired.release.version:
                    current[architecture] = mirrored
        ready = [mirrored for mirrored in current.values() if mirrored]
        if not ready:
            raise _unavailable(f"no release of the stream {stream} is ready yet")
        return ready

    def _require(self, desired: StreamRelease) -> MirroredRelease:
        mirrored = self._published(desired)
        if mirrored is None:
            name = f"{desired.release.version} for {desired.release.architecture}"
            raise _unavailable(f"{name} of the stream {desired.stream} is not ready yet")
        return mirrored

    def _published(self, desired: StreamRelease) -> MirroredRelease | None:
        """Return None if the release is not prepared, or its ISO is not there any more."""
        mirrored = self._mirrored.get(desired)
        if mirrored is None or self._base_image(desired) is not mirrored.base:
            return None
        disks = self._disks.find(desired) if self._disks else {}
        if mirrored.origin.release is not desired.release or mirrored.disks != disks:
            self._mirrored[desired] = mirrored = attrs.evolve(mirrored, origin=desired, disks=disks)
        return mirrored

    def _base_image(self, desired: StreamRelease) -> BaseImage | None:
        """Return the release's ISO, if it is ready and the one that the stream lists."""
        release = desired.release
        try:
            base = self._find_base_image(release.version, release.architecture, Kind.FULL_ISO)
        except ImageServiceError:
            return None
        return base if base.sha256 == release.iso.sha256 else None

    def _start_preparing(self, desired: StreamRelease, base: BaseImage) -> None:
        self._preparing[desired] = running = Deferred.fromCoroutine(self._prepare_one(desired, base))

        def remove(_: None) -> None:
            del self._preparing[desired]

        running.addCallback(remove)

    async def _prepare_one(self, desired: StreamRelease, base: BaseImage) -> None:
        """Raises nothing."""
        name = desired.entry.file_name
        try:
            mirrored = await self._in_thread(partial(self._prepare, desired, base))
        except Interrupted:
            return
        except (Unavailable, OSError) as error:
            self._log.warn("{name} cannot be mirrored: {reason}", name=name, reason=str(error))
        except Exception:  # noqa: BLE001 - a defect in one release must not harm the others
            self._log.failure("unexpected error while preparing {name} for the mirror", name=name)
        else:
            if desired in self._streams.desired:
                self._mirrored[desired] = mirrored

    def _render(
        self,
        path: str,
        content_type: str,
        releases: list[MirroredRelease],
        render: Callable[[str], bytes],
    ) -> BootImage:
        """Return a document, rendered anew if its base URL or its releases have changed."""
        key = path, self._get_base_url()
        before, image = self._rendered.get(key, ([], None))
        if image is None or [*map(id, before)] != [*map(id, releases)]:
            name = path.rpartition("/")[2]
            image = _literal(render(key[1]), "document", name, content_type)
            self._rendered[key] = (releases, image)
        return image


def _find_file(mirrored: MirroredRelease, name: str) -> BootImage:
    for file in mirrored.files:
        if file.name == name:
            base = mirrored.base
            sha256 = base.sha256 if file.file is None else file.sha256
            return BootImage(
                extents=ExtentMap((FileExtent(file.file or base.file, file.offset, file.length),)),
                etag=make_etag(f"{sha256} {file.offset} {file.length}", ()),
                modified=base.iso.created if file.file is None else None,
                file_name=file.name,
                is_iso=file is mirrored.iso,
                is_public=True,
            )
        if file.name + SIGNATURE_SUFFIX == name:
            if file.signature is None:
                raise NotFound(f"there is no signature of {file.name} here")
            return _literal(file.signature, "signature", name, SIGNATURE)
    names = ", ".join(file.name for file in mirrored.files)
    raise NotFound(f"the release has no file of this name; it has {names}")


def _literal(content: bytes, kind: str, file_name: str, content_type: str) -> BootImage:
    return BootImage(
        extents=ExtentMap((Literal(content),)),
        etag=make_etag(f"{kind} {hashlib.sha256(content).hexdigest()}", ()),
        modified=None,  # documents of one second would differ in their entity tags only
        file_name=file_name,
        is_iso=False,
        is_public=True,
        content_type=content_type,
    )


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(detail, retry_after_seconds=RETRY_AFTER_SECONDS)

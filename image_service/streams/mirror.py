"""``/streams/``: what is held of the streams, as they publish it.

A release is published when its ISO is ready and the digests of its parts are known. The document of a stream
tells of the newest such release of each architecture, but of none older than it told of before; that of a
release is there once it is whole, and then stays as it is.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from image_service.concurrency.interruption import Interrupted
from image_service.coreos.stream_mirror import SIGNATURE_SUFFIX, render_config_map, render_stream
from image_service.errors import ImageServiceError, NotFound, Unavailable
from image_service.images.boot_image import BootImage
from image_service.images.extents import ExtentMap, FileExtent, Literal
from image_service.images.reference import Kind
from image_service.images.validators import make_etag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from image_service.concurrency.threads import InThread
    from image_service.coreos.stream_mirror import PublishedRelease
    from image_service.images.base import BaseImage
    from image_service.streams.mirrored import MirroredFile, MirroredRelease
    from image_service.streams.streams import StreamRelease

RETRY_AFTER_SECONDS = 10
JSON = "application/json"
YAML = "application/yaml"
SIGNATURE = "application/pgp-signature"


class Offers(Protocol):
    """What streams offer, as ``Streams`` tells it."""

    @property
    def wanted(self) -> Sequence[StreamRelease]:
        """By stream and architecture, the newest first."""

    @property
    def aliases(self) -> Mapping[tuple[str, str], str]:
        """The release that a stream's name stands for, by stream and architecture."""


class Mirror:
    """Publishes what is held.

    Args:
        offers: what the streams offer.
        find: returns the ready base image of a version and architecture; ``Catalog.find_base_image``.
        in_thread: runs what reads whole images.
        prepare: makes a release ready, in a thread, as ``Preparation.prepare`` does.
        base_url: that locations begin with, without a slash at its end.
    """

    _log = Logger()

    def __init__(
        self,
        offers: Offers,
        find: Callable[[str, str, Kind], BaseImage],
        in_thread: InThread,
        prepare: Callable[[StreamRelease, BaseImage], MirroredRelease],
        base_url: str,
    ) -> None:
        self._offers = offers
        self._find = find
        self._in_thread = in_thread
        self._prepare = prepare
        self._base_url = base_url
        self._mirrored: dict[StreamRelease, MirroredRelease] = {}
        self._busy: dict[StreamRelease, Deferred[None]] = {}

    def update(self) -> None:
        """Begin with what has become ready, or may have a signature now; forget what is not wanted any more.

        To be called whenever a base image becomes ready or other releases are wanted, and now and then.
        """
        wanted = set(self._offers.wanted)
        self._mirrored = {
            release: mirrored for release, mirrored in self._mirrored.items() if release in wanted
        }
        for release in self._offers.wanted:
            base = self._base(release)
            if base is not None and release not in self._busy and self._is_due(release, base):
                self._begin(release, base)

    async def settled(self) -> None:
        """Wait for what is being prepared, which has to be interrupted if it is to end at once."""
        await gatherResults(list(self._busy.values()))

    def find(self, path: tuple[str, ...]) -> BootImage:
        """Give what lies below ``/streams/``.

        Args:
            path: segments: ``NAME.json``; a stream and ``configmap.yaml``; or as ``file`` takes them.

        Raises:
            NotFound: there is nothing.
            Unavailable: not yet.
        """
        match path:
            case (name,) if name.endswith(".json"):
                return self.document(name.removesuffix(".json"))
            case (stream, "configmap.yaml"):
                return self.config_map(stream)
            case (stream, version, architecture, name):
                return self.file(stream, version, architecture, name)
        raise NotFound(
            "there is nothing at this path; of a stream there are STREAM.json, STREAM-RELEASE.json and"
            " STREAM/configmap.yaml"
        )

    def document(self, name: str) -> BootImage:
        """Give stream metadata.

        Args:
            name: of a stream, or of a stream, ``-`` and a release.

        Returns:
            the document.

        Raises:
            NotFound: there is no such stream, nor such a release of one.
            Unavailable: nothing is held of it yet; of a release, that not all is.
        """
        if name in self._streams:
            held = self._held(name)
            return self._text(render_stream, name, held, f"{name}.json", JSON)
        for stream in self._streams:
            of_release = [
                wanted for wanted in self._wanted(stream) if f"{stream}-{wanted.release.version}" == name
            ]
            if of_release:
                return self._text(render_stream, stream, self._whole(of_release), f"{name}.json", JSON)
        raise NotFound(f"there is no such stream; there are {', '.join(self._streams) or 'none'}")

    def config_map(self, stream: str) -> BootImage:
        """Give stream metadata as OpenShift keeps it.

        Args:
            stream: its name.

        Raises:
            NotFound: there is no such stream.
            Unavailable: nothing is held of it yet.
        """
        if stream not in self._streams:
            raise NotFound(f"there is no such stream; there are {', '.join(self._streams) or 'none'}")
        return self._text(render_config_map, stream, self._held(stream), "configmap.yaml", YAML)

    def file(self, stream: str, version: str, architecture: str, name: str) -> BootImage:
        """Give a file of a release, or its signature.

        Args:
            stream: its stream's name.
            version: the release.
            architecture: RPM architecture name.
            name: of the file, as it is published.

        Raises:
            NotFound: there is no such release or file, or no signature of it.
            Unavailable: the release is not held yet.
        """
        for wanted in self._wanted(stream):
            if (wanted.release.version, wanted.release.architecture) == (version, architecture):
                (mirrored,) = self._whole([wanted])
                return _file(mirrored, name)
        raise NotFound("there is no such release")

    @property
    def _streams(self) -> Sequence[str]:
        return tuple(dict.fromkeys(wanted.stream for wanted in self._offers.wanted))

    def _wanted(self, stream: str) -> list[StreamRelease]:
        return [wanted for wanted in self._offers.wanted if wanted.stream == stream]

    def _held(self, stream: str) -> list[MirroredRelease]:
        """The release of each architecture that the stream's document tells of."""
        held: dict[str, MirroredRelease | None] = {}
        aliases = self._offers.aliases
        for wanted in self._wanted(stream):
            architecture = wanted.release.architecture
            if held.get(architecture, self) is self:
                found = self._ready(wanted)
                if found or aliases.get((stream, architecture)) == wanted.release.version:
                    held[architecture] = found
        ready = [mirrored for mirrored in held.values() if mirrored]
        if not ready:
            raise _unavailable(f"no release of the stream {stream} is held yet")
        return ready

    def _whole(self, wanted: Iterable[StreamRelease]) -> list[MirroredRelease]:
        """All of them, or none."""
        found = []
        for release in wanted:
            mirrored = self._ready(release)
            if mirrored is None:
                name = f"{release.release.version} for {release.release.architecture}"
                raise _unavailable(f"{name} of the stream {release.stream} is not held yet")
            found.append(mirrored)
        return found

    def _ready(self, wanted: StreamRelease) -> MirroredRelease | None:
        """What is published of it, unless its ISO is not there any more."""
        mirrored = self._mirrored.get(wanted)
        return mirrored if mirrored and self._base(wanted) is mirrored.base else None

    def _base(self, wanted: StreamRelease) -> BaseImage | None:
        """Its ISO, if that is ready, and is what the stream says."""
        release = wanted.release
        try:
            base = self._find(release.version, release.architecture, Kind.FULL_ISO)
        except ImageServiceError:
            return None
        return base if base.sha256 == release.iso.sha256 else None

    def _is_due(self, wanted: StreamRelease, base: BaseImage) -> bool:
        mirrored = self._mirrored.get(wanted)
        return mirrored is None or mirrored.base is not base or any(file.awaited for file in mirrored.files)

    def _begin(self, wanted: StreamRelease, base: BaseImage) -> None:
        self._busy[wanted] = running = Deferred.fromCoroutine(self._make_ready(wanted, base))

        def forget(_: None) -> None:
            del self._busy[wanted]

        running.addCallback(forget)

    async def _make_ready(self, wanted: StreamRelease, base: BaseImage) -> None:
        """Raises nothing."""
        name = wanted.entry.file_name
        try:
            mirrored = await self._in_thread(partial(self._prepare, wanted, base))
        except Interrupted:
            return
        except (Unavailable, OSError) as error:
            self._log.warn("{name} cannot be mirrored: {reason}", name=name, reason=str(error))
        except Exception:  # noqa: BLE001 - a fault of ours in one release must not harm the others
            self._log.failure("{name} met a fault while it was made ready to be mirrored", name=name)
        else:
            if wanted in self._offers.wanted:
                self._mirrored[wanted] = mirrored

    def _text(
        self,
        render: Callable[[str, str, Iterable[PublishedRelease]], bytes],
        stream: str,
        releases: list[MirroredRelease],
        file_name: str,
        content_type: str,
    ) -> BootImage:
        text = render(stream, self._base_url, [mirrored.held for mirrored in releases])
        return BootImage(
            extents=ExtentMap((Literal(text),)),
            etag=make_etag(f"document {sha256(text).hexdigest()}", ()),
            modified=None,  # of two documents of one second only their entity tags differ
            file_name=file_name,
            is_iso=False,
            is_public=True,
            content_type=content_type,
        )


def _file(mirrored: MirroredRelease, name: str) -> BootImage:
    for file in mirrored.files:
        if file.name == name:
            return _bytes(mirrored.base, file, is_iso=file is mirrored.iso)
    for file in mirrored.files:
        if file.name + SIGNATURE_SUFFIX == name:
            return _signature(file)
    names = ", ".join(file.name for file in mirrored.files)
    raise NotFound(f"the release has no such file; it has {names}")


def _bytes(base: BaseImage, file: MirroredFile, *, is_iso: bool) -> BootImage:
    return BootImage(
        extents=ExtentMap((FileExtent(base.file, file.offset, file.length),)),
        etag=make_etag(f"{base.sha256} {file.offset} {file.length}", ()),
        modified=base.layout.created,
        file_name=file.name,
        is_iso=is_iso,
        is_public=True,
    )


def _signature(file: MirroredFile) -> BootImage:
    if file.signature is None:
        raise NotFound(f"there is no signature of {file.name} here")
    return BootImage(
        extents=ExtentMap((Literal(file.signature),)),
        etag=make_etag(f"signature {sha256(file.signature).hexdigest()}", ()),
        modified=None,
        file_name=file.name + SIGNATURE_SUFFIX,
        is_iso=False,
        is_public=True,
        content_type=SIGNATURE,
    )


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(detail, retry_after_seconds=RETRY_AFTER_SECONDS)

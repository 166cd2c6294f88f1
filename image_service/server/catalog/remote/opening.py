"""Opens remote base images: pins the version that the origin has, and reads it through the block cache.

All of it runs in threads.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs
from twisted.logger import Logger

from image_service.common.files.block_cache.source import CacheIdentity, OriginChanged, OriginFailed
from image_service.common.http.origins import public_url
from image_service.common.registry.references import is_registry_url, parse_registry_url
from image_service.core.errors import BaseImageError, FormatError, Unavailable, describe_os_error
from image_service.core.families.coreos.minimal_iso import check_minimal_iso
from image_service.core.formats.digest_list import DigestList, max_list_bytes, parse_digest_list
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.images.canvas import drop_unusable_minimal
from image_service.server.catalog.lifecycle.opening import open_layout
from image_service.server.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES
from image_service.server.catalog.remote.origin import Origin
from image_service.server.catalog.remote.registry_origin import RegistryLayer
from image_service.server.catalog.remote.source import LoggedDigests, PinnedSource
from image_service.server.catalog.remote.whole_digest import WholeDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.files.block_cache.block_cache import BlockCache
    from image_service.common.http.client import HttpClient
    from image_service.common.registry.client import RegistryClient
    from image_service.core.base_file import BaseFile
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.catalog.lifecycle.signature import KeyRing
    from image_service.server.catalog.remote.origin import RangeOrigin, SignUrl
    from image_service.server.catalog.storage.base_records import Pin
    from image_service.settings.os_images import OsImage

BOOT_DIRECTORIES = ("boot", "coreos", "efi", "images", "isolinux")
NOT_BOOT_FILES = frozenset({"ROOTFS.IMG"})
MAX_BOOT_FILE = 512 * 1024 * 1024  # an initrd has some hundred MiB; a disconnected ISO has archives of GiB
CHANGES = "changes"
"""A file whose time is that of the latest change which a process on the cache found."""
_HEAD_BYTES = 1024 * 1024  # system area, volume descriptors, path tables and directories
_TAIL_BYTES = 64 * 1024  # the backup GPT
_PREFETCH_BYTES = 8 * 1024 * 1024

_log = Logger()


@attrs.frozen(eq=False)
class OpenedImage:
    """An open remote image.

    Args:
        base: the caller closes its file.
        identity: of its version in the cache.
        origin: where it is.
        whole: what is known of its digest; None: its granules have digests, or it is not to be verified.
        is_right: when it was opened, all that was in the cache, and all that was to come, had its digest.
    """

    base: BaseImage
    identity: CacheIdentity
    pin: Pin
    origin: RangeOrigin
    whole: WholeDigest | None
    is_right: bool

    @property
    def verified(self) -> str:
        """What says that the bytes are right: ``digest`` or ``origin``."""
        is_right = self.is_right or (self.whole is not None and self.whole.differing is not None)
        return "digest" if is_right else "origin"


@attrs.define(eq=False)
class RemoteImages:
    """Opens remote images.

    Args:
        make_cache: makes the cache of their blocks, once an image needs it.
        directory: of the cache.
        registries: keeps connections too.
        interruption: shuts the connections down.
        downloads: has the credentials.
        sign: signs URLs of S3.
        keys: a digest list must be signed by one of them; None: signatures are not verified.
        prefetch: ``boot``, ``all`` or ``none``.
        check_seconds: interval of asking origins whether they have another version.
        max_bytes: of the cache.
        verifies: reads layers as a whole that are to be verified; another process on the cache may do so.
    """

    make_cache: Callable[[], BlockCache]
    directory: Path
    client: HttpClient
    registries: RegistryClient
    interruption: Interruption
    downloads: OriginClient
    sign: SignUrl
    keys: KeyRing | None
    prefetch: str
    check_seconds: float
    max_bytes: int
    verifies: bool
    _cache: BlockCache | None = attrs.field(default=None, init=False)

    @property
    def cache(self) -> BlockCache:
        """The cache; made and started at first, in the reactor's thread, by `start`."""
        if self._cache is None:
            raise RuntimeError("no remote image was started")
        return self._cache

    @property
    def is_started(self) -> bool:
        """True if there is a remote image, or was one."""
        return self._cache is not None

    def start(self) -> None:
        """Start the cache, unless it runs already; raises OSError."""
        if self._cache is None:
            cache = self.make_cache()
            cache.start()
            self._cache = cache

    def announce_change(self) -> None:
        """Let the other processes on the cache know that an origin has changed. Blocks."""
        try:
            (self.directory / CHANGES).touch()
        except OSError as error:  # they find it at their next check
            _log.warn("cannot announce a change: {reason}", reason=describe_os_error(error))

    def latest_change(self) -> int:
        """Return a number that differs after each announcement."""
        try:
            return (self.directory / CHANGES).stat().st_mtime_ns
        except OSError:
            return 0

    def interrupt(self) -> None:
        """End all fetches and senders, in the reactor's thread: the service stops."""
        self.interruption.interrupt()
        if self._cache is not None:
            self._cache.end_senders()

    def close(self) -> None:
        """Close the cache, when no image is served any more. Blocks; idempotent."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()
        self.client.close()
        self.registries.close()

    def remove_unused(self, opened: Collection[OpenedImage]) -> None:
        """Remove the blocks of versions that no process has open, except these. Blocks."""
        self.cache.remove_others([image.identity for image in opened])

    def open(
        self,
        entry: OsImage,
        interruption: Interruption,
        on_changed: Callable[[CacheIdentity], None],
        pin: Pin | None = None,
    ) -> OpenedImage:
        """Pin the version that the origin has, fetch its boot files, and open it.

        Args:
            entry: with ``remote``.
            on_changed: called in any thread, with the version that a fetch wanted, when there is another
                one; perhaps repeatedly.
            pin: the version to open, which the origin need not have any more; its boot files are not fetched.

        Raises:
            BaseImageError: it cannot be served; says why.
            Unavailable: not now; says why.
            OSError: the cache cannot be used.
            Interrupted: the service stops.
        """
        try:
            return self._open(entry, interruption, on_changed, pin)
        except OriginFailed as error:
            interruption.raise_if_interrupted()
            if isinstance(error, OriginChanged) and pin is not None:
                raise BaseImageError("its origin has another version, and its blocks were removed") from None
            raise Unavailable(
                f"cannot fetch {public_url(entry.url)}: {error.strerror}",
                retry_after_seconds=error.retry_after_seconds,
            ) from None

    def _open(
        self,
        entry: OsImage,
        interruption: Interruption,
        on_changed: Callable[[CacheIdentity], None],
        pinned: Pin | None,
    ) -> OpenedImage:
        origin = self._origin_of(entry)
        pin = pinned or origin.find_version()
        stated = f"sha256:{entry.sha256}"
        if entry.sha256 and (pin.version or "").startswith("sha256:") and pin.version != stated:
            raise BaseImageError(f"its registry has {pin.version} there; it must be {stated}")
        digests = self._fetch_digests(entry, interruption)
        if digests is not None:
            if digests.size != pin.size:
                raise BaseImageError(f"its origin has {pin.size} bytes, its digest list {digests.size}")
            pin = attrs.evolve(pin, etag=None)
        elif pin.etag is None:
            raise BaseImageError(
                "its origin gives no strong validator (ETag), so a change could not be noticed; give digests"
                " for it, or have it downloaded, without remote"
            )
        validator = pin.etag or f"digests {entry.digests_sha256}"
        identity = CacheIdentity(public_url(entry.url), validator, pin.size)
        whole = WholeDigest(self.directory, identity, entry.file_name) if entry.verify else None
        if whole is not None:
            whole.raise_if_refused()
        source = PinnedSource(origin, pin, entry.file_name, partial(on_changed, identity))
        check = LoggedDigests(digests.digests, entry.file_name) if digests else whole
        file = self.cache.open(identity, source, check)
        is_right = digests is not None or (whole is not None and whole.differing is not None)
        try:
            base = self._examine(entry, file, identity, interruption)
            if pinned is None and self.prefetch != "none":
                self._keep_boot_files(file, identity, interruption)
        except BaseException:
            file.close()
            raise
        _log.info(
            "base image {image} is pinned at {url}: {validator}, {size} bytes",
            image=entry.file_name,
            url=identity.url,
            validator=validator,
            size=pin.size,
        )
        return OpenedImage(base, identity, pin, origin, whole, is_right)

    def is_changed(self, opened: OpenedImage) -> bool:
        """Return True if an image must be opened again; raises like `open`.

        That is if its origin has another version, or if it was opened with granules that may be wrong.
        """
        if opened.whole is not None:
            opened.whole.raise_if_refused()
            if not opened.is_right and opened.whole.differing:
                return True
        try:
            found = opened.origin.find_version()
        except OriginFailed as error:
            raise Unavailable(
                f"cannot fetch {opened.identity.url}: {error.strerror}",
                retry_after_seconds=error.retry_after_seconds,
            ) from None
        if opened.pin.etag is None:  # the digests say what the version is
            if found.size != opened.pin.size:
                raise BaseImageError(f"its origin has {found.size} bytes, its digest list {opened.pin.size}")
            return False
        is_changed = (found.etag, found.size) != (opened.pin.etag, opened.pin.size)
        if is_changed:
            self.announce_change()
        return is_changed

    def must_verify(self, opened: OpenedImage) -> bool:
        """Return True if this process is to read an image as a whole, and has not done it."""
        return self.verifies and opened.whole is not None and opened.whole.differing is None

    def verify(self, opened: OpenedImage, interruption: Interruption) -> None:
        """Read an image as a whole and compare it with its digest; `is_changed` has the outcome.

        Raises:
            OSError: it cannot be read, or the cache cannot.
            Interrupted: the service stops, or the image is not configured any more.
        """
        if opened.whole is not None and isinstance(opened.origin, RegistryLayer):
            with closing(opened.origin.read_whole(opened.pin)) as blocks:
                opened.whole.verify(self.cache, blocks, interruption.raise_if_interrupted)
            self.announce_change()

    def local_bytes(self, opened: OpenedImage) -> int:
        """Return how many bytes of an image are on local disk."""
        return self.cache.local_bytes(opened.identity)

    def fetch_all(self, opened: OpenedImage, interruption: Interruption) -> None:
        """Fetch what is absent, as far as the cache has space; raises OSError, Interrupted."""
        size = opened.pin.size
        if size > self.max_bytes * 9 // 10:
            _log.warn(
                "base image {image} is not fetched as a whole: it has {size} bytes, and"
                " REMOTE_CACHE_MAX_BYTES is {limit}",
                image=opened.base.name,
                size=size,
                limit=self.max_bytes,
            )
            return
        for offset in range(0, size, _PREFETCH_BYTES):
            interruption.raise_if_interrupted()
            self.cache.fetch(opened.identity, offset, min(_PREFETCH_BYTES, size - offset))

    def _origin_of(self, entry: OsImage) -> RangeOrigin:
        if is_registry_url(entry.url):
            file = parse_registry_url(entry.url)
            return RegistryLayer(file, entry.cpu_architecture, self.registries, self.interruption)
        return self._origin(entry.url)

    def _origin(self, url: str) -> Origin:
        return Origin(url, self.client, self.downloads, self.sign)

    def _fetch_digests(self, entry: OsImage, interruption: Interruption) -> DigestList | None:
        """Return the digest list of an entry, verified; None: it has none."""
        url = entry.digests_url
        if url is None:
            return None
        content = self._read_all(url, max_list_bytes(2**40))
        found = sha256(content).hexdigest()
        if found != entry.digests_sha256:
            raise BaseImageError(
                f"the SHA-256 of its digest list is {found}; it must be {entry.digests_sha256}"
            )
        if self.keys is not None:
            split = urlsplit(url)
            signature = self._read_all(split._replace(path=f"{split.path}.sig").geturl(), MAX_SIGNATURE_BYTES)
            self.keys.verify_bytes(content, signature, interruption)
        return parse_digest_list(content)

    def _read_all(self, url: str, max_bytes: int) -> bytes:
        split = urlsplit(url)
        if split.scheme != "file":
            return self._origin(url).read_all(max_bytes)
        with Path(unquote(split.path)).open("rb") as file:
            return file.read(max_bytes)

    def _examine(
        self, entry: OsImage, file: BaseFile, identity: CacheIdentity, interruption: Interruption
    ) -> BaseImage:
        base = open_layout(entry, file)(identity_digest(entry, identity))
        if base.disconnected:
            return base
        return drop_unusable_minimal(
            base,
            lambda minimal: check_minimal_iso(minimal, file.read_at, interruption.raise_if_interrupted),
        )

    def _keep_boot_files(self, file: BaseFile, identity: CacheIdentity, interruption: Interruption) -> None:
        """Fetch the bytes that are read until the kernel runs, and keep them on local disk."""
        try:
            for offset, length in boot_ranges(file):
                interruption.raise_if_interrupted()
                self.cache.pin(identity, offset, length)
        except OriginFailed:
            raise
        except OSError as error:
            _log.warn(
                "boot files of {url} are not all kept in the cache: {reason}; give it more space",
                url=identity.url,
                reason=error.strerror or str(error),
            )
        except FormatError as error:  # in a directory that nothing else reads
            _log.warn(
                "boot files of {url} are not kept in the cache: {reason}", url=identity.url, reason=error
            )


def identity_digest(entry: OsImage, identity: CacheIdentity) -> str:
    """Return what stands for the bytes of an image in every ETag, the same on all replicas.

    That is the SHA-256 of the file where digests show that the bytes are those: without them, the origin
    could change them and the SHA-256 of the configuration would stay.
    """
    return entry.sha256 if entry.sha256 and entry.digests_sha256 else identity.digest


def boot_ranges(file: BaseFile) -> Iterator[tuple[int, int]]:
    """Yield offset and length of what firmware and boot loaders read."""
    yield 0, min(_HEAD_BYTES, file.size)
    tail = min(_TAIL_BYTES, file.size)
    yield file.size - tail, tail
    iso = read_iso9660(file.read_at, file.size)
    for span in chain.from_iterable(map(iso.list_files, BOOT_DIRECTORIES)):
        name = span.path.rpartition("/")[2].upper()
        if 0 < span.length <= MAX_BOOT_FILE and not name.startswith(tuple(NOT_BOOT_FILES)):
            yield span.offset, span.length

"""Fetches a disk image in the parts that an import manifest names."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from image_service.common.http.origins import AllowedOrigins, origin_of_url, public_url
from image_service.common.transfer.bundle_manifest import is_bundle
from image_service.common.transfer.client import TransferClient, TransferTimes
from image_service.common.transfer.uploaded_parts import check_part, read_manifest_text
from image_service.common.transfer.xml_values import MAX_MANIFEST_BYTES
from image_service.core.errors import NoRoom, TransferFailed, UnsafeImage
from image_service.toolkit.disks.digest import sha256_of
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.transfer.parallel import TransferMeter, run_one, run_parallel
from image_service.toolkit.transfer.parts import download_part, is_unchanged, md5_of
from image_service.toolkit.transfer.resume import KeptParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.common.http.origins import UrlOrigin
    from image_service.common.transfer.manifest import ImportManifest, ManifestPart
    from image_service.toolkit.workspace.workspace import Workspace

_Result = TypeVar("_Result")

_FIRST_POLL_SECONDS = 1.0
_LAST_POLL_SECONDS = 30.0


@attrs.frozen
class FetchOptions:
    """What a user allows and asks for.

    Args:
        allowed: origins, at any address; none: only that of the manifest's URL, at public addresses.
        max_bytes: of the image; None: no limit but the volume's and that of the call.
        ca_file: authorities of HTTPS, beside those of the system.
        resume: directory that keeps verified parts of an interrupted call.
        wait_seconds: for a manifest and parts that are not there yet.
        digest: the SHA-256 of the image is computed.
        key: file of the RSA key that decrypts a bundle.
        certificate: file of that of the user who signed a bundle; None: those in the file of `key`, or the
            key is the user's.
        bundle_url: of the manifest of a bundle that is a file; None: its parts are files beside it.
        times: limits of each request.
    """

    allowed: tuple[UrlOrigin, ...] = ()
    max_bytes: int | None = None
    ca_file: Path | None = None
    resume: Path | None = None
    wait_seconds: float = 0
    digest: bool = True
    key: Path | None = None
    certificate: Path | None = None
    bundle_url: str | None = None
    times: TransferTimes = attrs.field(factory=TransferTimes)


@attrs.frozen
class FetchedImage:
    """What was fetched.

    Args:
        format: as `open_image` names it.
        size: bytes of the file.
        virtual_size: bytes of its disk.
        sha256: of the file; None: not computed.
    """

    format: str
    size: int
    virtual_size: int
    sha256: str | None

    def describe(self) -> dict[str, Any]:
        """Return what a report says of it."""
        return attrs.asdict(self)


@attrs.frozen(eq=False)
class ManifestSource:
    """A manifest as it was read, and how to get what it names.

    Args:
        location: a path, or a URL without credentials.
        text: the manifest.
        base: directory or URL beside which the parts of a bundle are.
        client: sends requests to the origins that this manifest may name.
        allowed: these origins.
    """

    location: str
    text: bytes
    base: Path | str = attrs.field(repr=False)
    client: TransferClient
    allowed: AllowedOrigins

    def describe(self) -> dict[str, Any]:
        """Return what a report says of it."""
        return {
            "format": "image-bundle" if is_bundle(self.text) else "import-manifest",
            "size": len(self.text),
            "sha256": hashlib.sha256(self.text).hexdigest(),
        }


def is_url(source: str) -> bool:
    """Return True if a source is to be fetched; otherwise it is a file."""
    return source.lower().startswith(("http://", "https://"))


def read_manifest(source: str, options: FetchOptions, workspace: Workspace) -> ManifestSource:
    """Return a manifest: of a file, or of a URL, for which it waits as long as the options say.

    Raises:
        UnsafeImage: the URL is not allowed.
        TransferFailed: it cannot be fetched.
        FormatError: it is too large.
        OSError: it cannot be read.
    """
    manifest_origin = origin_of_url(source, "the manifest's URL") if is_url(source) else None
    allowed = AllowedOrigins.of(options.allowed, manifest_origin)
    client = TransferClient(allowed, options.ca_file, options.times)
    if manifest_origin is None:
        path = Path(source)
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
        return ManifestSource(source, text, options.bundle_url or path.parent, client, allowed)

    text = _wait_for(partial(read_manifest_text, client, source), client, options.wait_seconds, workspace)
    return ManifestSource(public_url(source), text, source, client, allowed)


def check_size(size: int, options: FetchOptions) -> None:
    """Raise NoRoom if an image of `size` bytes is larger than allowed."""
    if options.max_bytes is not None and size > options.max_bytes:
        raise NoRoom(f"the image has {size} bytes, more than the {options.max_bytes} of --max-bytes")


def fetch_parts(
    manifest: ImportManifest, source: ManifestSource, out: Path, options: FetchOptions, workspace: Workspace
) -> FetchedImage:
    """Fetch the parts of a manifest, inspect the image, and give it its name.

    Raises:
        TransferFailed: a part is not to be had, or is not what it must be.
        UnsafeImage: a URL or address is not allowed; the image is unsafe, or of another format or size.
        NoRoom, TimedOut: a limit is exceeded.
        OSError: a file cannot be written.
    """
    for name, url in manifest.urls():
        source.allowed.check(url, name)
    check_size(manifest.file_size, options)
    workspace.reserve(manifest.file_size, "the image", out)
    client = source.client
    if options.wait_seconds:
        _wait_for_parts(manifest, client, options.wait_seconds, workspace)
    with ExitStack() as stack:
        kept = stack.enter_context(KeptParts(options.resume)) if options.resume else None
        if kept:
            with _writing(kept.image, manifest.file_size) as descriptor:
                _download(manifest, client, descriptor, workspace, kept)
        with workspace.output(out) as path:
            if kept:
                shutil.move(kept.image, path)
                kept.clear()
            else:
                with _writing(path, manifest.file_size) as descriptor:
                    _download(manifest, client, descriptor, workspace, None)
            virtual_size = _check_disk(path, manifest, workspace)
            return describe_image(path, manifest.content, virtual_size, options, workspace)


def describe_image(
    path: Path, format_: str, virtual_size: int, options: FetchOptions, workspace: Workspace
) -> FetchedImage:
    """Return what a finished image is, with its digest if the options ask for it."""
    with path.open("rb") as file:
        sha256 = sha256_of(file.fileno(), workspace.pace) if options.digest else None
        return FetchedImage(format_, os.fstat(file.fileno()).st_size, virtual_size, sha256)


def _download(
    manifest: ImportManifest,
    client: TransferClient,
    descriptor: int,
    workspace: Workspace,
    kept: KeptParts | None,
) -> None:
    workspace.progress.start("download", manifest.file_size)
    meter = TransferMeter(workspace)

    def fetch(part: ManifestPart) -> None:
        known = kept.find(part) if kept else None
        if known and md5_of(descriptor, part) == known.md5 and is_unchanged(client, part, known.etag):
            meter.add(part.length)
            return
        verified = download_part(client, part, descriptor, meter)
        if kept:
            kept.add(part, verified, descriptor)

    run_parallel(fetch, manifest.parts, workspace, client.abort)
    workspace.progress.finish()


@contextmanager
def _writing(path: Path, size: int) -> Iterator[int]:
    """Yield the descriptor of a private file of `size` bytes; what it contains stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(descriptor, size)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_disk(path: Path, manifest: ImportManifest, workspace: Workspace) -> int:
    """Return the bytes of the disk; UnsafeImage if the image is unsafe, or is not what its manifest says."""
    name = workspace.name_of(path)
    with open_image(path, manifest.content, pace=workspace.pace, name=name) as image:
        virtual_size = image.disk.virtual_size
    if virtual_size > manifest.volume_size:
        raise UnsafeImage(
            f"the image's disk has {virtual_size} bytes,"
            f" more than the {manifest.volume_gib} GiB of its volume"
        )
    if manifest.size not in {manifest.file_size, virtual_size}:
        raise UnsafeImage(
            f"the manifest's size is {manifest.size} bytes,"
            f" but the image has {manifest.file_size} and its disk {virtual_size}"
        )
    return virtual_size


def _wait_for_parts(
    manifest: ImportManifest, client: TransferClient, seconds: float, workspace: Workspace
) -> None:
    workspace.progress.start("wait", len(manifest.parts))
    deadline = time.monotonic() + seconds

    for part in manifest.parts:
        _wait_for(partial(check_part, client, part), client, max(0, deadline - time.monotonic()), workspace)
        workspace.progress.set(part.index + 1)
    workspace.progress.finish()


def _wait_for(
    attempt: Callable[[], _Result], client: TransferClient, seconds: float, workspace: Workspace
) -> _Result:
    """Return the result of the first attempt that succeeds; raise the failure if the time is up."""
    deadline = time.monotonic() + seconds
    delay = _FIRST_POLL_SECONDS
    while True:
        try:
            return run_one(lambda: client.retry(attempt), workspace, client.abort)
        except TransferFailed:
            next_at = time.monotonic() + delay
            if next_at > deadline:
                raise
        while time.monotonic() < next_at:
            workspace.check()
            time.sleep(min(delay, _FIRST_POLL_SECONDS))
        delay = min(2 * delay, _LAST_POLL_SECONDS)

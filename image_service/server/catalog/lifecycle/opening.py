"""Opens and verifies base images. Runs in threads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.files.local_file import LocalFile
from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.family import (
    FIRST_WITH_NMSTATE,
    INITRD_FILES,
    KERNEL_FILES,
    ROOTFS_FILE,
)
from image_service.core.families.coreos.live_iso import LiveIso
from image_service.core.families.coreos.minimal_iso import check_minimal_iso
from image_service.core.families.live.others import GENERIC
from image_service.core.images.base_image import BaseImage
from image_service.core.images.base_layout import read_base_layout
from image_service.core.images.canvas import drop_unusable_minimal
from image_service.core.images.reference import Kind
from image_service.server.catalog.lifecycle.signature import MAX_SIGNATURE_BYTES
from image_service.server.catalog.storage.digest import Sidecar, get_sha256
from image_service.settings.os_images import precedence

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.base_file import BaseFile
    from image_service.core.families.coreos.minimal_iso import MinimalIso
    from image_service.server.catalog.lifecycle.signature import KeyRing
    from image_service.settings.os_images import OsImage


def signature_path(path: Path) -> Path:
    """Return the path of a file's detached signature."""
    return path.with_name(f"{path.name}.sig")


def open_base_image(
    entry: OsImage, path: Path, sidecar: Path, interruption: Interruption, keys: KeyRing | None = None
) -> BaseImage:
    """Open a file and verify it.

    Args:
        entry: the configuration of the image, which may give its SHA-256.
        sidecar: path at which its digests are stored.
        keys: it must be signed by one of them; None: signatures are not verified.

    Returns:
        the image; the caller closes its file.

    Raises:
        BaseImageError: it is not a pristine CoreOS live ISO, or digest or signature is wrong.
        Unavailable: it changed meanwhile.
        OSError: it cannot be read.
        Interrupted: the service stops.
    """
    file = LocalFile.open(path)
    try:
        return examine_file(entry, file, sidecar, interruption, keys)
    except BaseException:
        file.close()
        raise


def examine_file(
    entry: OsImage, file: BaseFile, sidecar: Path, interruption: Interruption, keys: KeyRing | None = None
) -> BaseImage:
    """Verify an open file; see `open_base_image`."""
    known = load_sidecar(sidecar, file)  # first, to notice if the file changes while it is read
    make_base = open_layout(entry, file)
    base = make_base(verify_file(entry, file, known, interruption, keys))

    def check_recipe(minimal: MinimalIso) -> None:
        if known.get_digest("minimal_sha256") != minimal.sha256:
            check_minimal_iso(minimal, file.read_at, interruption.raise_if_interrupted)
            known.save_digest("minimal_sha256", minimal.sha256)

    return base if base.disconnected else drop_unusable_minimal(base, check_recipe)


def load_sidecar(path: Path, file: BaseFile) -> Sidecar:
    """Return the stored digests of a file; BaseImageError if it changed without a write."""
    known = Sidecar(path, file)
    if known.is_corrupt:
        raise BaseImageError(
            "the file's content changed without a write (corruption?): a sample of it differs"
        )
    return known


def verify_file(
    entry: OsImage, file: BaseFile, known: Sidecar, interruption: Interruption, keys: KeyRing | None
) -> str:
    """Verify digest and signature of a file, and return its SHA-256; see `open_base_image`."""
    digest = get_sha256(file, known, interruption)
    if entry.sha256 not in {None, digest}:
        raise BaseImageError(f"its SHA-256 is {digest}; it must be {entry.sha256}")
    if keys:
        _check_signature(file, digest, keys, known, interruption)
    return digest


def open_layout(entry: OsImage, file: BaseFile) -> Callable[[str], BaseImage]:
    """Read the layout of an open file; return what makes its base image of a digest, which is in every ETag.

    Raises:
        BaseImageError: it is not an ISO of the entry's family and type.
    """
    family, iso = read_base_layout(file, entry.family)
    if family is GENERIC and entry.family is None:
        raise BaseImageError(
            f"volume {iso.volume_id!r} is neither of CoreOS nor of another family that is known; give its"
            ' entry in OS_IMAGES "family": "generic" to serve it with kernel arguments alone'
        )
    is_disconnected = Kind(entry.image_type) is Kind.DISCONNECTED_ISO
    if isinstance(iso, LiveIso) and not is_disconnected:
        _check_full_iso(iso)
    needs_nmstate = family is None and precedence(entry.openshift_versions[0]) >= precedence(
        FIRST_WITH_NMSTATE
    )
    return lambda sha256: BaseImage(
        file=file,
        iso=iso,
        sha256=sha256,
        family=family,
        version=entry.version,
        architecture=entry.cpu_architecture,
        disconnected=is_disconnected,
        needs_nmstate=needs_nmstate,
    )


def _check_full_iso(iso: LiveIso) -> None:
    boot_files = {
        KERNEL_FILES[0]: iso.files.kernel,
        INITRD_FILES[0]: iso.files.initrd,
        ROOTFS_FILE: iso.files.rootfs,
    }
    absent = [name for name, file in boot_files.items() if file is None]
    if absent:
        raise BaseImageError(f"is not a full ISO: {', '.join(absent)} is missing")
    if iso.customized:
        raise BaseImageError(f"is already customized: {iso.customized}; use the published image")


def _check_signature(
    file: BaseFile, digest: str, keys: KeyRing, known: Sidecar, interruption: Interruption
) -> None:
    signature = signature_path(Path(file.path))
    try:
        with signature.open("rb") as opened:
            content = opened.read(MAX_SIGNATURE_BYTES)
    except FileNotFoundError:
        raise BaseImageError(f"has no OpenPGP signature {signature.name}, but SIGNING_KEYS is set") from None
    proof = keys.proof(digest, content)
    if known.get_digest("signature_sha256") != proof:
        keys.verify(file, content, interruption)
        known.save_digest("signature_sha256", proof)

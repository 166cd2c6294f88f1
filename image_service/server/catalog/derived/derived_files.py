"""Derived files in ``DATA_DIR``: found, or made if absent. Runs in a thread.

assisted-image-service stores its own minimal ISOs there, as ``rhcos-minimal-iso-…``; ours have other names,
so that neither service removes the other's.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.interruption import Interruption  # noqa: TC001 - same
from image_service.common.files.atomic import atomic_write
from image_service.common.files.local_file import LocalFile
from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.families.coreos.rootfs import nmstate_archive, read_nmstatectl
from image_service.core.images.base_image import BaseImage, NmstateImage
from image_service.server.catalog.derived.derivation import DERIVATION_VERSION, derive_minimal_iso
from image_service.server.catalog.storage.data_dir import DataDir  # noqa: TC001 - attrs resolves annotations at run time
from image_service.server.catalog.storage.digest import Sidecar, get_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from image_service.core.base_file import BaseFile


def derived_names(version: str, architecture: str) -> tuple[str, str]:
    """Return the names in ``DATA_DIR`` of a base image's minimal ISO and of its initrd with nmstatectl."""
    return (
        f"rhcos-derived-minimal-iso-{version}-{architecture}.iso",
        f"rhcos-nmstate-{version}-{architecture}.img",
    )


@attrs.frozen
class DerivedFileStore:
    """Finds or makes derived files, one at a time."""

    data_dir: DataDir
    interruption: Interruption

    def get_minimal_iso(self, base: BaseImage) -> BaseImage:
        """Return a minimal ISO with an area for a ramdisk, and nmstatectl if the base needs it.

        The caller closes its file.

        Raises:
            BaseImageError: none can be derived from this base; says why.
            Unavailable: not now; says why.
            OSError: a file cannot be read or written.
            Interrupted: the service stops.
        """
        name, _ = derived_names(base.version, base.architecture)
        path = self.data_dir.path / name
        archive, digests = None, [base.sha256]
        if base.needs_nmstate:
            with self._nmstate(base) as (nmstate, digest):
                archive = Path(nmstate.path)
                digests.append(digest)
        make = partial(derive_minimal_iso, base, archive, path, self.data_dir.scratch, self.interruption)
        with self._open_derived(path, _origin(digests), make) as (file, digest):
            iso = read_live_iso(partial(self._read_at, file), file.size)
            return attrs.evolve(base, file=file.duplicate(), iso=iso, sha256=digest)

    def get_nmstate_image(self, base: BaseImage) -> NmstateImage:
        """Return an initrd with nmstatectl, extracted from the base's rootfs; see `get_minimal_iso`."""
        with self._nmstate(base) as (file, digest):
            return NmstateImage(file.duplicate(), digest)

    def _nmstate(self, base: BaseImage) -> AbstractContextManager[tuple[BaseFile, str]]:
        _, name = derived_names(base.version, base.architecture)
        path = self.data_dir.path / name
        return self._open_derived(path, _origin([base.sha256]), partial(self._extract_nmstate, base, path))

    @contextmanager
    def _open_derived(
        self, path: Path, origin: str, make: Callable[[], None]
    ) -> Iterator[tuple[BaseFile, str]]:
        """Yield a file that was made from ``origin`` and its digest, after making it if it is absent."""
        with self.data_dir.lock(path.name, self.interruption):
            self.interruption.raise_if_interrupted()
            if not _is_derived_from(path, origin):
                self.data_dir.claim_files(path.name, path.name, f"{path.name}.json")
                path.unlink(missing_ok=True)  # the disk may be too small for both
                make()
                with closing(LocalFile.open(path)) as file:
                    _sidecar(file).save_digest("origin", origin)
            with closing(LocalFile.open(path)) as file:
                yield file, get_sha256(file, _sidecar(file), self.interruption)

    def _extract_nmstate(self, base: BaseImage, path: Path) -> None:
        rootfs = base.iso.files.rootfs
        if rootfs is None:
            raise BaseImageError(f"{base.name} has no rootfs to take nmstatectl from")
        archive = nmstate_archive(read_nmstatectl(partial(self._read_at, base.file), rootfs))
        with atomic_write(path) as file:
            file.write(archive)

    def _read_at(self, file: BaseFile, offset: int, length: int) -> bytes:
        self.interruption.raise_if_interrupted()
        return file.read_at(offset, length)


def _origin(digests: Sequence[str]) -> str:
    """Return a digest of what a file is made from, and of the version of the derivation."""
    return hashlib.sha256(repr((DERIVATION_VERSION, *digests)).encode()).hexdigest()


def _is_derived_from(path: Path, origin: str) -> bool:
    try:
        with closing(LocalFile.open(path)) as file:
            return _sidecar(file).get_digest("origin") == origin
    except FileNotFoundError:
        return False


def _sidecar(file: BaseFile) -> Sidecar:
    return Sidecar(Path(f"{file.path}.json"), file)

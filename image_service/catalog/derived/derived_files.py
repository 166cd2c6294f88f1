"""What is derived from base images lies in ``DATA_DIR``: it is found again, or made. Runs in a thread.

assisted-image-service keeps its own minimal ISOs there, as ``rhcos-minimal-iso-…``; ours have other names, so
that neither takes away what the other has.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.catalog.derived.derivation import DERIVATION_VERSION, derive
from image_service.catalog.storage.data_dir import DataDir  # noqa: TC001 - attrs resolves annotations at run time
from image_service.catalog.storage.digest import Sidecar, get_sha256
from image_service.concurrency.interruption import Interruption  # noqa: TC001 - same
from image_service.coreos.live_iso import read_live_iso
from image_service.coreos.rootfs import nmstate_archive, read_nmstatectl
from image_service.errors import BaseImageError
from image_service.files.atomic import atomic_write
from image_service.files.base_file import BaseFile
from image_service.images.base import BaseImage, NmstateImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def derived_names(version: str, architecture: str) -> tuple[str, str]:
    """Give the names in ``DATA_DIR`` of a base image's minimal ISO, and of its initrd with nmstatectl."""
    return (
        f"rhcos-derived-minimal-iso-{version}-{architecture}.iso",
        f"rhcos-nmstate-{version}-{architecture}.img",
    )


@attrs.frozen
class DerivedFiles:
    """Finds or makes derived files, one at a time.

    Args:
        data_dir: where they are.
        interruption: ends it from another thread.
    """

    data_dir: DataDir
    interruption: Interruption

    def get_minimal_iso(self, base: BaseImage) -> BaseImage:
        """Give a minimal ISO with room for a ramdisk, and nmstatectl where the base needs it.

        Args:
            base: the full ISO.

        Returns:
            the minimal ISO; its descriptor belongs to the caller.

        Raises:
            BaseImageError: there can be none; says why.
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
        make = partial(derive, base, archive, path, self.data_dir.scratch, self.interruption)
        with self._obtained(path, _origin(digests), make) as (file, digest):
            layout = read_live_iso(partial(self._read_at, file), file.size)
            return attrs.evolve(base, file=file.duplicate(), layout=layout, sha256=digest)

    def get_nmstate_image(self, base: BaseImage) -> NmstateImage:
        """Give an initrd that has nmstatectl and nothing else.

        Args:
            base: has it in its rootfs.

        Returns:
            the initrd; its descriptor belongs to the caller.

        Raises:
            BaseImageError: the base has no such file, or none that can be read; says why.
            Unavailable: it changed meanwhile.
            OSError: a file cannot be read or written.
            Interrupted: the service stops.
        """
        with self._nmstate(base) as (file, digest):
            return NmstateImage(file.duplicate(), digest)

    def _nmstate(self, base: BaseImage) -> AbstractContextManager[tuple[BaseFile, str]]:
        _, name = derived_names(base.version, base.architecture)
        path = self.data_dir.path / name
        return self._obtained(path, _origin([base.sha256]), partial(self._extract_nmstate, base, path))

    @contextmanager
    def _obtained(self, path: Path, origin: str, make: Callable[[], None]) -> Iterator[tuple[BaseFile, str]]:
        """Open a file that was made of ``origin``, if need be after making it, and tell its digest."""
        with self.data_dir.lock(path.name, self.interruption):
            self.interruption.raise_if_interrupted()
            if not _is_made_of(path, origin):
                self.data_dir.claim_files(path.name, path.name, f"{path.name}.json")
                path.unlink(missing_ok=True)  # there may be no room for both
                make()
                with closing(BaseFile.open(path)) as file:
                    _sidecar(file).save_digest("origin", origin)
            with closing(BaseFile.open(path)) as file:
                yield file, get_sha256(file, _sidecar(file), self.interruption)

    def _extract_nmstate(self, base: BaseImage, path: Path) -> None:
        rootfs = base.layout.files.rootfs
        if rootfs is None:
            raise BaseImageError(f"{base.name} has no rootfs to take nmstatectl from")
        archive = nmstate_archive(read_nmstatectl(partial(self._read_at, base.file), rootfs))
        with atomic_write(path) as file:
            file.write(archive)

    def _read_at(self, file: BaseFile, offset: int, length: int) -> bytes:
        self.interruption.raise_if_interrupted()
        return file.read_at(offset, length)


def _origin(digests: Sequence[str]) -> str:
    """What a file is made of, in one digest, and by which version of the maker."""
    return hashlib.sha256(repr((DERIVATION_VERSION, *digests)).encode()).hexdigest()


def _is_made_of(path: Path, origin: str) -> bool:
    try:
        with closing(BaseFile.open(path)) as file:
            return _sidecar(file).get_digest("origin") == origin
    except FileNotFoundError:
        return False


def _sidecar(file: BaseFile) -> Sidecar:
    return Sidecar(Path(f"{file.path}.json"), file)

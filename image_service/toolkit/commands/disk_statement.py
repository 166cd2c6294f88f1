"""The signed statement of a customized copy of a disk, in the form of those of boot images."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.atomic import atomic_write
from image_service.core.images.boot_image import PLAIN
from image_service.core.provenance.dsse import BundleSigner, load_signing_key, sign_bundle
from image_service.core.provenance.statement import EXCERPT_BYTES, StatedBase, state_changes
from image_service.core.provenance.statement_json import render_statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.toolkit.customization.customize import CustomizedDisk
    from image_service.toolkit.customization.patch import Change


@attrs.frozen
class DiskStatement:
    """A statement that is to be written."""

    _path: Path
    _signer: BundleSigner

    @classmethod
    def open(cls, path: Path, key: Path) -> DiskStatement:
        """Return the statement to write to a file.

        Raises:
            ConfigurationError: the key does not sign here.
            OSError: the key cannot be read.
        """
        return cls(path, load_signing_key(key.read_bytes()))

    def write(
        self, source: Path, target: Path, done: CustomizedDisk, changes: Iterable[Change], config: bytes
    ) -> None:
        """Write the statement of a copy, whose digests were computed; replaces the file.

        Args:
            changes: of the source's file; the copy may be longer.

        Raises:
            Unprocessable: more bytes of the source were replaced than a statement has.
            OSError: the file cannot be written.
        """
        base_bytes = source.stat().st_size
        statement = state_changes(
            ((change.offset, change.before, change.after) for change in changes),
            _read_from(target, base_bytes),
            StatedBase(str(done.input_sha256), base_bytes, source.name, "unknown"),
            file_name=target.name,
            digest=str(done.output_sha256),
            config=config,
            layout=PLAIN,
        )
        with atomic_write(self._path) as file:
            file.write(sign_bundle(self._signer, render_statement(statement)))


def _read_from(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(EXCERPT_BYTES):
            yield piece

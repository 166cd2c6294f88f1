"""The signed statement of an image that a command writes, as the service makes them."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.cli.shared.output import choose_output, open_output
from image_service.core.errors import BaseImageError
from image_service.core.families.coreos.live_iso import LiveIso
from image_service.core.formats.digest_list import BLOCK_BYTES
from image_service.core.images.layouts import newest_layout
from image_service.core.provenance.dsse import load_signing_key, sign_bundle
from image_service.core.provenance.statement import StatedBase, contains_whole, hash_blocks, state_image
from image_service.core.provenance.statement_json import render_statement

if TYPE_CHECKING:
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.provenance.dsse import BundleSigner


@attrs.frozen
class StatementWriter:
    """Writes a statement; what can be wrong is found before the image is written."""

    _path: Path | None  # None: standard output
    _signer: BundleSigner

    @classmethod
    def open(cls, name: str, key: Path, base: BaseImage, *, force: bool) -> StatementWriter:
        """Return the writer of a file; - is standard output.

        Raises:
            ConfigurationError: the key does not sign here.
            BaseImageError: the base image is customized already, so that its digest says nothing.
            OSError: the key cannot be read, or the file exists and `force` is False.
        """
        if isinstance(base.iso, LiveIso) and base.iso.customized:
            raise BaseImageError(
                "a statement needs a published image as its base; this one is customized:"
                f" {base.iso.customized}"
            )
        signer = load_signing_key(key.read_bytes())
        return cls(choose_output(name, base.file, force=force), signer)

    def write(self, image: BootImage, base: BaseImage, config: bytes) -> None:
        """Write the statement of an image, which reads it and its base again."""
        digest, blocks = hash_blocks(base.file.read_at, base.file.size, BLOCK_BYTES)
        base = attrs.evolve(base, sha256=digest)
        has_blocks = contains_whole(image, base)
        stated = StatedBase(
            sha256=digest,
            length=base.file.size,
            version=base.iso.volume_id,
            architecture=base.architecture,
            block_length=BLOCK_BYTES if has_blocks else None,
            blocks=blocks if has_blocks else (),
        )
        statement = state_image(
            image,
            base,
            stated,
            digest=hash_blocks(image.extents.read_at, image.size, BLOCK_BYTES)[0],
            config=config,
            time=base.iso.created,
            layout=newest_layout().version,
        )
        with open_output(self._path) as file:
            file.write(sign_bundle(self._signer, render_statement(statement)))

"""Signed statements of composed images: which bytes are the live ISO's, and what the others are for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import NotFound
from image_service.core.images.layouts import newest_layout
from image_service.jobs.model import ImageType
from image_service.server.serving.signed_statements import StatedImage

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import InThread
    from image_service.jobs.artifacts.composed_images import ComposedImages
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.model import Compose
    from image_service.server.http.respond import Representation
    from image_service.server.serving.digests import Digests
    from image_service.server.serving.signed_statements import SignedStatements


@attrs.frozen
class ComposeStatements:
    """The statements of ISOs that are composed while they are read; see `SignedStatements`.

    Args:
        digests: those of `signed`.
    """

    _signed: SignedStatements
    _composed: ComposedImages
    _composes: ComposeRepository
    _in_thread: InThread
    _digests: Digests

    async def get(self, compose: Compose) -> Representation:
        """Return the bundle with the statement of a compose's image.

        Raises:
            NotFound: its image is not such an ISO, or its customization was erased.
            ImageServiceError: as `ComposedImages.get` and `SignedStatements.get` raise.
        """
        if compose.plan.result is not None or compose.image_type is ImageType.PXE_TAR_XZ:
            raise NotFound("only an ISO has a statement; of any image, /provenance has the inputs")
        deadline = self._digests.deadline()
        composed = await self._composed.get(compose)
        image, time = composed.representation.image, compose.created_at.replace(microsecond=0)
        stated = StatedImage(image, composed.base, time, newest_layout().version)
        return await self._signed.get(stated, partial(self._load_config, compose), deadline)

    async def _load_config(self, compose: Compose) -> bytes:
        customization = await self._in_thread(partial(self._composes.customization, compose))
        if customization is None:
            raise NotFound("the customization of this image was erased")
        return customization.ignition or b""

"""Starts, cancels and deletes composes: rows first, then the engine."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
from twisted.logger import Logger

from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer.errors import WRONG_STATE
from image_service.jobs.composer.requests import check_available
from image_service.jobs.image_ids import INSTANCE
from image_service.jobs.model import Compose, ComposeBase, ComposeState, ImageType, UploadResult
from image_service.jobs.plans.plan import make_plan
from image_service.jobs.plans.sizes import most_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.concurrency.process_parts import InThread
    from image_service.jobs.artifacts.bases import Bases
    from image_service.jobs.artifacts.image_catalog import ImageCatalog
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.composer.requests import ComposeLimits
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.dispatch.compose_plans import ComposePlans
    from image_service.jobs.model import ComposeRequest, ComposeSummary

_log = Logger()

_DISK_TYPES = tuple(image_type for image_type in ImageType if image_type.is_disk)


@attrs.frozen
class ComposeService:
    """Starts, cancels and deletes composes.

    Args:
        in_thread: calls the rows in a thread.
        clock: seconds since 1970.
    """

    _composes: ComposeRepository
    _catalog: ImageCatalog
    _plans: ComposePlans
    _bases: Bases
    _in_thread: InThread
    _clock: Callable[[], float]
    limits: ComposeLimits

    async def start(self, tenant: str, request: ComposeRequest) -> Compose:
        """Add a compose, which the engine starts soon, or once it answers.

        Raises:
            ApiError: there is no base for it.
            TooManyQueued: the tenant has too many that have not ended.
            BudgetExceeded: the tenant has no room for it.
            StoreFailed: the database does not answer.
        """
        base = await self._find_base(tenant, request)
        compose = self._make_compose(tenant, request, base)
        add = partial(self._composes.add, compose, request.customization, self.limits.max_queued)
        await self._in_thread(add)
        _log.info(
            "added compose {compose}: {image_type} of {distribution}",
            compose=compose.id,
            image_type=request.image_type.value,
            distribution=compose.distribution,
            tenant=tenant,
        )
        self._plans.start(compose)
        return compose

    async def cancel(self, compose: ComposeSummary) -> None:
        """Cancel a compose; its row ends at once, its worker stops at the next heartbeat.

        Raises:
            ApiError: it has ended already.
        """
        if not await self._in_thread(partial(self._composes.finish, compose.id, ComposeState.CANCELLED)):
            raise ApiError("the compose has ended", number=WRONG_STATE)
        _log.info("cancelled compose {compose}", compose=compose.id, tenant=compose.tenant)
        await self._plans.cancel(compose)

    async def delete(self, compose: ComposeSummary) -> None:
        """Delete a compose, its image and its history; cancel it if it has not ended."""
        await self._in_thread(partial(self._composes.delete, compose.id))
        _log.info("deleted compose {compose}", compose=compose.id, tenant=compose.tenant)
        if not compose.state.is_final:
            await self._plans.cancel(compose)

    async def delete_image(self, image: CatalogImage) -> None:
        """Delete an image of the catalog, and the compose that made it."""
        kind, _, compose_id = image.source.partition(":")
        if kind == "compose":
            await self._in_thread(partial(self._composes.delete, compose_id))
        else:
            await self._in_thread(partial(self._catalog.delete, image))
        _log.info("deleted image {image}", image=image.id, tenant=image.tenant)

    async def _find_base(self, tenant: str, request: ComposeRequest) -> ComposeBase | CatalogImage:
        """Return the base of an image: a disk of the catalog by its alias, or that of a distribution."""
        if request.distribution.startswith(INSTANCE):
            image = await self._in_thread(partial(self._catalog.find, tenant, request.distribution))
            if image is not None:
                check_available(request, {request.distribution: {image.architecture: _DISK_TYPES}})
                return image
        check_available(request, self._bases.distributions())
        return self._bases.find(request.distribution, request.architecture, request.image_type)

    def _make_compose(
        self, tenant: str, request: ComposeRequest, base: ComposeBase | CatalogImage
    ) -> Compose:
        compose_id = str(uuid4())
        now = datetime.fromtimestamp(self._clock(), UTC)
        ignition = request.customization.ignition
        plan = make_plan(compose_id, request, base, self.limits.upload_place, self.limits.upload_registry)
        disk_bytes = base.virtual_size
        if isinstance(base, ComposeBase):
            disk_bytes = self._bases.disk_bytes(base)
        return Compose(
            id=compose_id,
            tenant=tenant,
            distribution=request.distribution,
            architecture=request.architecture,
            image_type=request.image_type,
            request=request.document,
            plan=plan,
            state=ComposeState.PENDING,
            created_at=now,
            size=request.size,
            uploads=tuple(UploadResult(target, "pending") for target in request.uploads),
            ignition_sha256=None if ignition is None else hashlib.sha256(ignition).hexdigest(),
            source_image=base.stored_id,
            store_bytes=most_bytes(plan, disk_bytes),
        )

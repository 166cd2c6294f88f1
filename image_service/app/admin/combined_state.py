"""The state of all serving processes, for the administrative listener, which is in the supervisor."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, DeferredList, FailureGroup, race

from image_service.app.admin.process_status import merge_statuses
from image_service.core.errors import Unavailable
from image_service.server.observability.log import set_level
from image_service.server.processes.forwarding import ForwardedRequests
from image_service.server.processes.queries import NO_RESPONSE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from image_service.app.admin.base_url import BaseUrl
    from image_service.app.admin.process_status import StatusDocument
    from image_service.server.admin.links_api import LinkHandlers
    from image_service.server.admin.state import Page
    from image_service.server.processes.process_slot import ProcessSlot


@attrs.frozen
class CombinedState:
    """The `ServingState` of a service of several serving processes.

    Args:
        is_running: returns False once the service is shutting down.
    """

    _slots: Sequence[ProcessSlot]
    _base_url: BaseUrl
    _render_metrics: Callable[[], Awaitable[Page]]
    _is_running: Callable[[], bool]

    async def unready_reason(self) -> str:
        """See `ServiceState`: one serving process that can serve is enough; a stuck one is not waited for."""

        async def check(slot: ProcessSlot) -> None:
            if reason := await slot.query("unready_reason"):
                raise Unavailable(reason)

        if not self._is_running():
            return "this service is shutting down"
        checks = [Deferred.fromCoroutine(check(slot)) for slot in self._serving]
        if not checks:
            return NO_RESPONSE
        try:
            await race(checks)
        except FailureGroup as group:
            first, *_ = group.failures
            return first.getErrorMessage()
        return ""

    async def describe_impairment(self) -> str:
        """See `ServiceState`: of the first serving process that responds."""
        for slot in self._serving:
            with suppress(Unavailable):
                return str(await slot.query("describe_impairment"))
        return ""

    async def render_metrics(self) -> Page:
        """See `ServiceState`."""
        return await self._render_metrics()

    async def render_images(self) -> str:
        """See `ServiceState`: of the first serving process that responds."""
        for slot in self._serving:
            with suppress(Unavailable):
                return str(await slot.query("render_images"))
        raise Unavailable(NO_RESPONSE, retry_after_seconds=1)

    async def find_family(self, version: str, architecture: str) -> str | None:
        """Return the name of the family of a full ISO: the first serving process that responds knows."""
        for slot in self._serving:
            with suppress(Unavailable):
                family: str | None = await slot.query("find_family", version, architecture)
                return family
        return None

    async def retry_image(self, version: str, architecture: str, image_type: str) -> bool:
        """See `ServingState`: each serving process has its own attempts."""
        responses = await DeferredList(
            [slot.query("retry_image", version, architecture, image_type) for slot in self._serving],
            consumeErrors=True,
        )
        return any(has_responded and is_begun for has_responded, is_begun in responses)

    async def describe_status(self) -> StatusDocument:
        """See `ServingState`: of all serving processes that respond."""
        responses = await DeferredList(
            [slot.query("describe_status") for slot in self._serving], consumeErrors=True
        )
        statuses = [status for has_responded, status in responses if has_responded]
        if not statuses:
            raise Unavailable(NO_RESPONSE, retry_after_seconds=1)
        return merge_statuses(statuses)

    async def set_log_level(self, level: str) -> None:
        """See `ServingState`: set it here and in all serving processes, also in those that are starting."""
        set_level(level)
        for slot in self._slots:
            slot.send("log_level", level)

    def describe_base_address(self) -> Mapping[str, Any]:
        """See `ServingState`."""
        return self._base_url.describe()

    async def choose_address(self, address: str | None) -> None:
        """See `ServingState`: those that start later get it with their assignment."""
        await self._base_url.choose(address)
        await self._send_base_url()

    async def follow_address(self) -> None:
        """See `ServingState`."""
        if self._base_url.follow():
            await self._send_base_url()

    def find_base_urls(self) -> Sequence[str]:
        """See `ServingState`."""
        return self._base_url.find_all()

    async def _send_base_url(self) -> None:
        for slot in self._slots:
            slot.send("base_url", self._base_url.url)
        # Each handles messages in their order: a process that responds has the URL.
        asked = [slot.query("unready_reason") for slot in self._serving]
        await DeferredList(asked, consumeErrors=True)

    async def exchange_figures(
        self, replica_id: str, figures: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """See `ServingState`: by the first serving process that responds."""
        for slot in self._serving:
            with suppress(Unavailable):
                seen: Sequence[Mapping[str, Any]] = await slot.query("exchange_figures", replica_id, figures)
                return seen
        return ()

    @property
    def links(self) -> LinkHandlers:
        """The links of the first serving process that serves (see `ServingState`)."""
        return ForwardedRequests(self._slots)

    @property
    def _serving(self) -> list[ProcessSlot]:
        return [slot for slot in self._slots if slot.is_serving]

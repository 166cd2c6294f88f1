"""Starts and cancels the plans of composes whose rows are there: the engine may be unavailable."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import DeferredSemaphore
from twisted.logger import Logger

from image_service.core.errors import EngineUnavailable

if TYPE_CHECKING:
    from image_service.jobs.engine.engine import Engine
    from image_service.jobs.model import Compose, ComposeSummary

_log = Logger()

_CONCURRENT_STARTS = 4  # the engine starts 100 a second one by one


@attrs.frozen(eq=False)
class ComposePlans:
    """Starts and cancels plans."""

    _engine: Engine
    _starts: DeferredSemaphore = attrs.field(
        init=False, factory=partial(DeferredSemaphore, _CONCURRENT_STARTS)
    )

    def start(self, compose: Compose) -> None:
        """Have the engine start a plan soon; if it does not answer, the reconciler starts the plan later."""
        starting = self._starts.run(self._start, compose)
        starting.addErrback(lambda failure: _log.failure("a compose cannot be started", failure))

    async def cancel(self, compose: ComposeSummary) -> None:
        """Have the engine end the plan now; by itself it ends when its next step finds no running compose."""
        try:
            await self._engine.cancel_plan(compose.id)
        except EngineUnavailable as error:
            _log.warn(
                "the engine still has compose {compose}: {reason}", compose=compose.id, reason=error.detail
            )

    async def _start(self, compose: Compose) -> None:
        try:
            await self._engine.start_plan(compose)
        except EngineUnavailable as error:
            _log.warn(
                "compose {compose} will be started later: {reason}", compose=compose.id, reason=error.detail
            )

"""The steps of a plan that this service carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.jobs.engine.engine import StepResult
    from image_service.jobs.model import Compose, Step

ServerAction: TypeAlias = "Callable[[Compose, Step], Awaitable[StepResult]]"
"""Carries out a step; may be repeated. What a client has caused is in the result, what may pass is raised:
Unavailable, StoreFailed."""

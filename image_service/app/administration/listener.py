"""The administrative listener of a service that serves images: its APIs and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.admin.links_api import LinksApi
from image_service.admin.listener import start_admin
from image_service.admin.status_api import StatusApi
from image_service.admin.status_page import page_routes

if TYPE_CHECKING:
    from image_service.admin.api import AdminApi
    from image_service.admin.state import ServingState
    from image_service.concurrency.parts import PartsStack
    from image_service.settings.settings import Settings


def start_administration(parts: PartsStack, settings: Settings, state: ServingState) -> None:
    """Listen on ``ADMIN_LISTEN`` until the parts stop; do nothing if it is not set.

    Raises:
        ConfigurationError: see `start_admin`.
    """
    apis: list[AdminApi] = [StatusApi(state), LinksApi(state.links, settings.links.max_seconds)]
    start_admin(parts, settings, state, apis=apis, pages=page_routes())

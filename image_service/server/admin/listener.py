"""``ADMIN_LISTEN``: a listener for those who run the service, beside those for its clients."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from image_service.common.files.reloaded import Reloaded
from image_service.core.errors import ConfigurationError
from image_service.server.admin.admin_api import api_routes
from image_service.server.admin.monitoring import PROBES, Monitoring
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.listening import ApiListener
from image_service.server.web_api.resource import ApiResource, ApiSite
from image_service.server.web_api.router import ApiRouter
from image_service.server.web_api.session_api import SessionApi
from image_service.server.web_api.sessions import Sessions
from image_service.settings.admin import read_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.admin.admin_api import AdminApi
    from image_service.server.admin.state import ServiceState
    from image_service.server.web_api.router import Handlers
    from image_service.settings.admin import AdminSettings
    from image_service.settings.network import TlsSettings

MAX_BODY_BYTES = 64 * 1024


class AdminConfiguration(Protocol):
    """The settings that the listener needs, of a role."""

    @property
    def admin(self) -> AdminSettings:
        """Its addresses and token."""

    @property
    def tls(self) -> TlsSettings:
        """Its certificate beyond loopback."""


def start_admin(  # noqa: PLR0913 - parts of the listener
    parts: PartsStack,
    settings: AdminConfiguration,
    state: ServiceState,
    *,
    apis: Sequence[AdminApi] = (),
    files: Mapping[str, Handlers] = MappingProxyType({}),
    max_body_bytes: int = MAX_BODY_BYTES,
) -> None:
    """Listen on all of ``ADMIN_LISTEN`` until the parts stop; do nothing if it is not set.

    Args:
        parts: see `PartsStack`.
        apis: beside that of monitoring.
        files: of a page that asks for the token itself, by path; they need none.
        max_body_bytes: of a request.

    Raises:
        ConfigurationError: an address cannot be listened on; the token, key or certificate cannot be read.
    """
    token_file, reactor = settings.admin.token_file, parts.reactor
    if not settings.admin.is_enabled:
        return
    token = None if token_file is None else _reload_token(token_file, reactor.seconds)
    routes = {re.escape(path): handlers for path, handlers in files.items()}
    sessions = None
    apis = [Monitoring(state), *apis]
    if files:
        sessions = Sessions(token or (lambda: ""), reactor.seconds)
        apis.append(SessionApi(sessions, is_needed=token is not None))
    guard = RequestGuard(
        token, any_host=token is not None, sessions=sessions, public_paths=PROBES | files.keys()
    )
    router = ApiRouter({**routes, **api_routes(apis)})
    site = ApiSite(ApiResource(guard, router.respond), reactor, max_body_bytes)
    listener = ApiListener(parts, "ADMIN_LISTEN", "admin", site)
    for address in settings.admin.listen:
        listener.listen(address, settings.tls)


def _reload_token(file: Path, seconds: Callable[[], float]) -> Callable[[], str]:
    """Return a function that returns the present token of a file."""

    def make() -> str:
        try:
            return read_token(file)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    return Reloaded([file], make, seconds).get

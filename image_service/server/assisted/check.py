"""One try to reach assisted-service, so that a wrong address is known before the first image is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from twisted.internet.defer import Deferred

from image_service.core.errors import ImageServiceError
from image_service.server.assisted.calls import IGNITION_LIMIT_BYTES, ApiCall, Attempt, CallKind
from image_service.server.assisted.connections import ApiConnections, raise_timeout
from image_service.server.assisted.server import Server
from image_service.settings.proxies import NO_PROXIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.posixbase import PosixReactorBase

    from image_service.settings.proxies import ProxySettings
    from image_service.settings.upstream import UpstreamSettings

TIMEOUT_SECONDS = 5.0
_NO_INFRA_ENV = str(UUID(int=0))
_CALL = ApiCall(CallKind.INFRA_ENV, "a test request", (_NO_INFRA_ENV,), IGNITION_LIMIT_BYTES)


async def check_upstream(
    reactor: PosixReactorBase,
    settings: UpstreamSettings,
    proxies: ProxySettings = NO_PROXIES,
    record: Callable[[ImageServiceError | None], None] = lambda _: None,
) -> str | None:
    """Request an infra-env that does not exist, without credentials.

    Args:
        reactor: for the connection.
        settings: of assisted-service.
        proxies: on the way to it.
        record: gets the result, None for a response.

    Returns:
        None: there was an HTTP response, whatever its status. Else a sentence that says why not, and what to
        check.

    Raises:
        ConfigurationError: the CA file is unusable.
    """
    server = Server.make(settings.url, settings.ca_file, insecure=settings.insecure, proxies=proxies)
    connections = ApiConnections(reactor, server)
    exchanged = Deferred.fromCoroutine(connections.exchange(Attempt(_CALL), None))
    late = f"no answer within {TIMEOUT_SECONDS:g} s; check ASSISTED_SERVICE_HOST and the network"
    try:
        await exchanged.addTimeout(TIMEOUT_SECONDS, reactor, raise_timeout(late))
    except ImageServiceError as error:
        record(error)
        return f"{error.detail} ({server})"
    finally:
        await connections.close()
    record(None)
    return None

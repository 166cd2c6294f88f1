"""``ADMIN_LISTEN``: a listener for those who run the service, beside those for its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.defer import maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.protocols.tls import TLSMemoryBIOFactory

from image_service.admin.monitoring import PROBES, Monitoring
from image_service.errors import ConfigurationError
from image_service.files.reloaded import Reloaded
from image_service.management.authentication import RequestGuard
from image_service.management.connections import LimitedFactory
from image_service.management.resource import ApiResource, ApiSite
from image_service.management.router import ApiRouter
from image_service.settings.admin import read_token
from image_service.transport.listeners import cannot_listen, log_listening
from image_service.transport.tls.certificate import ServerCertificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IProtocolFactory, IReactorTime

    from image_service.admin.state import ServiceState
    from image_service.concurrency.parts import PartsStack
    from image_service.settings.network import TlsSettings
    from image_service.settings.settings import Settings

MAX_BODY_BYTES = 64 * 1024


def start_admin(parts: PartsStack, settings: Settings, state: ServiceState) -> None:
    """Listen on ``ADMIN_LISTEN`` until the parts stop; do nothing if it is not set.

    Raises:
        ConfigurationError: the address cannot be listened on; the token, key or certificate cannot be read.
    """
    listen, token_file, reactor = settings.admin.listen, settings.admin.token_file, parts.reactor
    if listen is None:
        return
    token = None if token_file is None else _reload_token(token_file, reactor.seconds)
    guard = RequestGuard(token, any_host=token is not None, public_paths=PROBES)
    router = ApiRouter(Monitoring(state).routes())
    site: IProtocolFactory = ApiSite(ApiResource(guard, router.respond), reactor, MAX_BODY_BYTES)
    if not listen.is_loopback:
        site = _with_tls(site, settings.tls, reactor)
    factory = LimitedFactory(site)
    try:
        port = reactor.listenTCP(listen.port, factory, interface=listen.host)
    except CannotListenError as error:
        raise cannot_listen("ADMIN_LISTEN", listen.host, listen.port, error.socketError) from None

    async def stop() -> None:
        await maybeDeferred(port.stopListening)
        factory.abort_all()

    parts.push_async_callback(stop)
    number = cast("IPv4Address | IPv6Address", port.getHost()).port
    log_listening(listen.host, number, "HTTP: admin" if isinstance(site, ApiSite) else "HTTPS: admin")


def _reload_token(file: Path, seconds: Callable[[], float]) -> Callable[[], str]:
    """Return a function that returns the present token of a file."""

    def make() -> str:
        try:
            return read_token(file)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    return Reloaded([file], make, seconds).get


def _with_tls(site: IProtocolFactory, tls: TlsSettings, clock: IReactorTime) -> IProtocolFactory:
    """Return the site below TLS; without a certificate, the site."""
    if tls.key_file is None or tls.certificate_file is None:
        return site
    certificate = ServerCertificate(
        tls.key_file, tls.certificate_file, clock, legacy_ciphers=tls.legacy_ciphers
    )
    # Twisted's own TLS: that of the listeners for clients sends files.
    return TLSMemoryBIOFactory(certificate, isClient=False, wrappedFactory=site)

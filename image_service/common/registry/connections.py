"""HTTP clients for hosts: each with the authorities that are trusted for them."""

from __future__ import annotations

import threading
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import attrs

from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError, UntrustedCertificate
from image_service.common.http.tls import new_context
from image_service.common.http.watch import RequestLimits
from image_service.common.registry.counts import RegistryCounts
from image_service.core.errors import ConfigurationError
from image_service.core.formats.hosts import is_authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.http.origins import Proxy
    from image_service.common.registry.credentials import CredentialStore
    from image_service.common.registry.mirrors import Endpoint, RegistryRules

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Current(Protocol[T_co]):
    """A value that is made of files, such as ``Reloaded``."""

    def get(self) -> T_co:
        """Return the value of the present files."""


@attrs.frozen
class Unchanging(Generic[T]):
    """A value that is read once, by a program that ends."""

    value: T

    def get(self) -> T:
        """Return it."""
        return self.value


MakeCurrent: TypeAlias = "Callable[[Sequence[Path], Callable[[], ssl.SSLContext]], Current[ssl.SSLContext]]"


@attrs.frozen
class RegistryOptions:
    """How registries are reached.

    Args:
        credentials: of registries.
        rules: mirrors.
        certs_dirs: each may have a directory ``HOST[:PORT]`` with authorities (``*.crt``), and with the
            certificate (``*.cert``) and key (``*.key``) of this client.
        ca_file: authorities for all registries, beside those of the system.
        insecure: registries whose certificates are not verified, and which may speak plain HTTP.
        find_proxy: returns the proxy for a URL, if there is one.
        counts: of all requests that are made with these options.
        make_current: ``Reloaded`` where certificates change meanwhile, else `read_once`.
    """

    credentials: Current[CredentialStore]
    rules: Current[RegistryRules]
    make_current: MakeCurrent = attrs.field(kw_only=True)
    certs_dirs: tuple[Path, ...] = ()
    ca_file: Path | None = None
    insecure: frozenset[str] = frozenset()
    find_proxy: Callable[[str], Proxy | None] = lambda _: None
    counts: RegistryCounts = attrs.field(factory=RegistryCounts)


@attrs.frozen
class RegistryCall:
    """What bounds the requests of one piece of work."""

    limits: RequestLimits
    interruption: Interruption


class RegistryConnections:
    """The clients; may be used in several threads.

    Args:
        max_idle: connections to each host that are kept until `close`.
    """

    def __init__(self, options: RegistryOptions, max_idle: int) -> None:
        self._options = options
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._clients: dict[tuple[tuple[Path, ...], bool], HttpClient] = {}
        self._plain: dict[str, bool] = {}

    def client_of(self, host: str, *, is_insecure: bool = False) -> HttpClient:
        """Return the client for a host.

        Args:
            host: with its port, as in a URL.
        """
        key = self._files_of(host), is_insecure or host in self._options.insecure
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._make_client(*key)
            return self._clients[key]

    def base_url(self, endpoint: Endpoint, call: RegistryCall) -> str:
        """Return the URL of a registry: https, unless it is insecure and speaks plain HTTP.

        Raises:
            HttpError: an insecure registry answers neither.
        """
        host = "registry-1.docker.io" if endpoint.registry == "docker.io" else endpoint.registry
        if not endpoint.is_insecure:
            return f"https://{host}"
        if host not in self._plain:
            self._plain[host] = self._speaks_plain_http(host, call)
        return f"{'http' if self._plain[host] else 'https'}://{host}"

    def close(self) -> None:
        """Close the connections that are kept."""
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _files_of(self, host: str) -> tuple[Path, ...]:
        """Return what the directories of certificates have for a host, which a redirect may name."""
        if not is_authority(host):
            return ()
        directories = [found for each in self._options.certs_dirs if (found := each / host).is_dir()]
        return tuple(path for each in directories for path in sorted(each.iterdir()))

    def _make_client(self, files: tuple[Path, ...], is_insecure: bool) -> HttpClient:  # noqa: FBT001 - of the key
        read = [path for path in files if path.suffix in {".crt", ".cert", ".key"}]
        if self._options.ca_file is not None:
            read.append(self._options.ca_file)
        make = partial(_make_context, files, self._options.ca_file, is_insecure=is_insecure)
        trust = cache(partial(self._options.make_current, read, make))  # read once there is a request by TLS

        def context() -> ssl.SSLContext:
            return trust().get()

        find_proxy = self._options.find_proxy
        return HttpClient(context, RequestLimits(), find_proxy=find_proxy, max_idle=self._max_idle)

    def _speaks_plain_http(self, host: str, call: RegistryCall) -> bool:
        """Ask both ways: TLS first, as other clients of registries do."""
        send = partial(
            self.client_of(host, is_insecure=True).send,
            fields={},
            limits=call.limits,
            interruption=call.interruption,
        )
        try:
            with send("GET", f"https://{host}/v2/"):
                return False
        except UntrustedCertificate:
            raise
        except HttpError as error:
            if error.is_connected:
                raise
            by_tls = error
        with send("GET", f"http://{host}/v2/") as response:
            # Servers that speak TLS answer 400 to those who do not.
            if response.status not in {HTTPStatus.OK, HTTPStatus.UNAUTHORIZED}:
                raise by_tls
            return True


def read_once(_: Sequence[Path], make: Callable[[], ssl.SSLContext]) -> Current[ssl.SSLContext]:
    """Return what files hold now."""
    return Unchanging(make())


def _make_context(files: tuple[Path, ...], ca_file: Path | None, *, is_insecure: bool) -> ssl.SSLContext:
    context = new_context(ca_file, insecure=is_insecure)
    for path in files:
        try:
            if path.suffix == ".crt":
                context.load_verify_locations(path)
            elif path.suffix == ".cert":
                context.load_cert_chain(path, path.with_suffix(".key"))
        except OSError as error:  # SSLError is one
            reason = getattr(error, "reason", None) or error.strerror
            raise ConfigurationError(f"{path} cannot be read: {reason}") from None
    return context

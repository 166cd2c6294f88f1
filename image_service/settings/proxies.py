"""HTTP proxies for requests of the service, by the rules of Go's ``net/http.ProxyFromEnvironment``."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

import attrs

from image_service.common.http.origins import DEFAULT_PORTS, Proxy
from image_service.core.errors import ConfigurationError
from image_service.core.formats.hosts import host_fault
from image_service.settings import parsers
from image_service.settings.variables import read_group, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

_Address: TypeAlias = IPv4Address | IPv6Address
_FAULT = (
    "must be http://[user:password@]host[:port], or https://…, with / @ and % in user and password"
    " percent-encoded"
)
# host, and after a colon the port; an IPv6 address with a port stands in brackets
_EXEMPT = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")


@attrs.frozen
class _ExemptHost:
    """A host that gets no proxy.

    Args:
        name: the end of a host name from a dot on; empty: `network` counts.
        is_whole: the host name without that dot counts too.
        port: the only one; None: all.
    """

    name: str = ""
    is_whole: bool = False
    network: IPv4Network | IPv6Network | None = None
    port: int | None = None

    def matches(self, host: str, address: _Address | None, port: int) -> bool:
        if self.port not in {None, port}:
            return False
        if self.network is not None:
            return address is not None and address in self.network
        return host.endswith(self.name) or (self.is_whole and host == self.name[1:])


@attrs.frozen
class Exemptions:
    """The hosts of ``NO_PROXY``; loopback is always one of them."""

    _hosts: tuple[_ExemptHost, ...] = ()
    _are_all: bool = False

    def include(self, host: str, port: int) -> bool:
        """Return True if requests to a host, in lower case, get no proxy."""
        address = _parse_address(host)
        if self._are_all or host == "localhost" or (address is not None and address.is_loopback):
            return True
        return any(exempt.matches(host, address, port) for exempt in self._hosts)


def parse_proxy(text: str) -> Proxy:
    """Parse the URL of a proxy; without a scheme it is http, and without a port 80, or 443 for https."""
    url = text if "://" in text else f"http://{text}"
    try:
        split = urlsplit(url)
        user, at, netloc = split.netloc.rpartition("@")
        address = parsers.address(netloc)
    except ValueError:
        raise ValueError(host_fault(url) or _FAULT) from None
    if split.scheme not in DEFAULT_PORTS or split.path not in {"", "/"} or split.query or split.fragment:
        raise ValueError(_FAULT)
    name, _, password = user.partition(":")
    credentials = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    port = address.port or DEFAULT_PORTS[split.scheme]
    return Proxy(address.host, port, f"Basic {credentials}" if at else "", is_tls=split.scheme == "https")


def parse_exemptions(text: str) -> Exemptions:
    """Parse a list separated by commas; like Go, ignore entries that are not hosts."""
    entries = [entry for each in text.lower().split(",") if (entry := each.strip())]
    hosts = tuple(host for entry in entries if (host := _parse_exempt(entry)) is not None)
    return Exemptions(hosts, "*" in entries)


def _parse_exempt(entry: str) -> _ExemptHost | None:
    with suppress(ValueError):
        return _ExemptHost(network=ip_network(entry, strict=False))
    match = _EXEMPT.fullmatch(entry)
    if match is None:
        return None
    host, port = match[1] or match[2], int(match[3]) if match[3] else None
    address = _parse_address(host)
    if address is not None:
        return _ExemptHost(network=ip_network(address), port=port)
    name = host.removeprefix("*")
    return _ExemptHost("." + name.removeprefix("."), not name.startswith("."), port=port)


def _parse_address(host: str) -> _Address | None:
    with suppress(ValueError):
        address = ip_address(host)
        return getattr(address, "ipv4_mapped", None) or address
    return None


@attrs.frozen(kw_only=True)
class ProxySettings:
    """Proxies."""

    http: Proxy | None = setting("HTTP_PROXY", "http_proxy", parse=parse_proxy, is_secret=True)
    """Proxy for requests to `http://` URLs: to assisted-service, and to the origins of base images and
    streams. `http://[user:password@]host[:port]`, or `https://…` for a proxy that is reached by TLS; its
    certificate is verified as those of the servers behind it are, by the same authorities. Requests to
    `localhost` and to loopback addresses never use one."""
    https: Proxy | None = setting("HTTPS_PROXY", "https_proxy", parse=parse_proxy, is_secret=True)
    """Proxy for requests to `https://` URLs, by CONNECT; its URL is as that of `HTTP_PROXY`."""
    exempt: Exemptions = setting("NO_PROXY", "no_proxy", parse=parse_exemptions, absent=Exemptions())
    """Hosts that are reached without a proxy, separated by commas, as in Go programs: `example.com` (with its
    subdomains), `.example.com` (the subdomains alone), an IP address, or a CIDR block. A name or an address
    may have a `:port`. `*` stands for all hosts."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ProxySettings:
        """Read the variables; raises ConfigurationError with all faults."""
        faults: list[str] = []
        settings = read_group(cls, environ, faults)
        if faults:
            raise ConfigurationError("\n".join(faults))
        return settings

    def find(self, url: str) -> Proxy | None:
        """Return the proxy for requests to an http or https URL; None: they are sent directly."""
        split = urlsplit(url)
        proxy = self.https if split.scheme == "https" else self.http
        port = split.port or DEFAULT_PORTS[split.scheme]
        return None if proxy is None or self.exempt.include(split.hostname or "", port) else proxy


NO_PROXIES = ProxySettings()

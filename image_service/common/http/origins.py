"""Origins of URLs: which of them may get requests, at which addresses, and proxies before them."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import FormatError, UnsafeImage
from image_service.core.formats.hosts import ascii_host

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_URL_BYTES = 8192
_URL = re.compile(r"https?://[!-~]{1,8192}")  # printable ASCII without spaces
_NAMED_FRAGMENTS = {"oci", "release"}
DEFAULT_PORTS = {"http": 80, "https": 443}


@attrs.frozen
class UrlOrigin:
    """Scheme, host and port of a URL (RFC 6454)."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as the field Host has them."""
        host = bracketed(self.host)
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@attrs.frozen
class Proxy:
    """An HTTP proxy.

    Args:
        host: name or IP address, without brackets.
        authorization: the value of Proxy-Authorization; empty: none.
        is_tls: it is reached by TLS.
    """

    host: str
    port: int
    authorization: str = attrs.field(default="", repr=False)
    is_tls: bool = False

    @property
    def netloc(self) -> str:
        """Host and port, as in a URL."""
        return f"{bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        """Return its URL without user and password."""
        return f"{'https' if self.is_tls else 'http'}://{self.netloc}"


def bracketed(host: str) -> str:
    """Return a host as it is in a URL."""
    return f"[{host}]" if ":" in host else host


@lru_cache
def origin_of(url: str) -> str:
    """Return the origin of a URL of any scheme, as text; ValueError if its port is not a number."""
    split = urlsplit(url)
    default = DEFAULT_PORTS.get(split.scheme)
    port = "" if split.port in {None, default} else f":{split.port}"
    return f"{split.scheme}://{bracketed(split.hostname or '')}{port}"


def origin_of_url(url: str, name: str) -> UrlOrigin:
    """Return the origin of an http or https URL.

    Args:
        url: from outside.
        name: of the URL, for messages.

    Raises:
        FormatError: it is not such a URL, or contains user information or a fragment.
    """
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        split, port = urlsplit(""), None
    if not _URL.fullmatch(url) or len(url) > _MAX_URL_BYTES or not split.hostname or port == 0:
        raise FormatError(f"{name} is not an http or https URL of at most {_MAX_URL_BYTES} bytes")
    if "@" in split.netloc or "#" in url or "\\" in split.netloc:
        raise FormatError(f"{name} contains user information or a fragment, which a URL here must not have")
    try:
        host = ascii_host(split.hostname)
    except ValueError as fault:
        raise FormatError(f"{name} {fault}") from None
    return UrlOrigin(split.scheme, host, port or DEFAULT_PORTS[split.scheme])


def parse_origin(text: str) -> UrlOrigin:
    """Return the origin that a user has written as SCHEME://HOST[:PORT].

    Raises:
        FormatError: it is none, or has a path or a query.
    """
    origin = origin_of_url(text, text)
    split = urlsplit(text)
    if split.path.strip("/") or split.query:
        raise FormatError(f"{text} has more than scheme, host and port")
    return origin


def public_url(url: str) -> str:
    """Return a URL without user, query and fragment, which may be credentials; no part of an invalid one.

    The fragment of a URL in a registry stays: it names a file in an image.
    """
    try:
        split = urlsplit(url)
    except ValueError:
        return "a URL that is not valid"
    fragment = split.fragment if split.scheme in _NAMED_FRAGMENTS else ""
    return split._replace(netloc=split.netloc.rpartition("@")[2], query="", fragment=fragment).geturl()


@attrs.frozen
class AllowedOrigins:
    """The origins that may get requests.

    Args:
        named: by the user; at any address.
        implied: the manifest's own, if the user has named none; at public addresses only.
        setting: by which the user names them, for messages.
    """

    named: frozenset[UrlOrigin]
    implied: UrlOrigin | None = None
    setting: str = "--allow-host"

    @classmethod
    def of(cls, named: Iterable[UrlOrigin], manifest: UrlOrigin | None) -> AllowedOrigins:
        """Return the origins that the user allows.

        Args:
            named: by the user.
            manifest: that of the manifest's URL; None: it is a file.
        """
        origins = frozenset(named)
        return cls(origins, None if origins else manifest)

    def check(self, url: str, name: str) -> UrlOrigin:
        """Return the origin of a URL; UnsafeImage if it is not allowed, FormatError if it is not a URL."""
        origin = origin_of_url(url, name)
        if origin not in self.named and origin != self.implied:
            raise UnsafeImage(f"{name} is at {origin}, which {self.setting} does not list")
        return origin

    def check_address(self, origin: UrlOrigin, address: str) -> None:
        """Raise UnsafeImage if the address is not public and the user has not named the origin."""
        if origin not in self.named and not _is_public(address):
            raise UnsafeImage(
                f"{origin.host} has the address {address}, which is not public,"
                f" and {self.setting} does not list {origin}"
            )


def _is_public(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is not None:
            return _is_public(str(inner))
    return parsed.is_global and not parsed.is_multicast

"""The URL that is checked, in its parts."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Self
from urllib.parse import urljoin, urlsplit

import attrs

from image_service.core.errors import InvalidArguments
from image_service.core.formats.hosts import host_fault, is_web_url

_PORTS = {"http": 80, "https": 443}
_MAX_SHOWN = 64  # characters of the last segment


@attrs.frozen
class ImageUrl:
    """A URL, which may contain a credential: only `shown` is for output.

    Args:
        text: the URL as it was given.
        scheme: ``http`` or ``https``.
        host: a name or an address, without brackets.
        port: the given one, or that of the scheme.
        path: at least ``/``.
        query: "" if there is none.
    """

    text: str = attrs.field(repr=False)
    scheme: str
    host: str
    port: int
    path: str = attrs.field(repr=False)
    query: str = attrs.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of a URL; raise InvalidArguments if it is not an http or https URL."""
        if text.startswith(("oci://", "release://")):
            raise InvalidArguments(
                "the URL is that of a base image in a registry, which no machine boots from:"
                " image-service serve --check tries it"
            )
        if not is_web_url(text):
            form = (
                "must be an http or https URL without user name and fragment, and with other characters"
                " escaped, such as http://192.0.2.1:8080/images/full.iso"
            )
            raise InvalidArguments(f"the URL {host_fault(text) or form}")
        split = urlsplit(text)
        return cls(
            text=text,
            scheme=split.scheme,
            host=split.hostname or "",
            port=split.port or _PORTS[split.scheme],
            path=split.path or "/",
            query=split.query,
        )

    @property
    def is_https(self) -> bool:
        """True if it needs TLS."""
        return self.scheme == "https"

    @property
    def is_address(self) -> bool:
        """True if the host is an IP address."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def target(self) -> str:
        """The target of a request: path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def origin(self) -> str:
        """Scheme, host and port, for output."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def shown(self) -> str:
        """The URL without parts that may be a credential: origin and last segment."""
        directory, _, last = self.path.rpartition("/")
        last = last if len(last) <= _MAX_SHOWN else "…"
        return f"{self.origin}/{'…/' if directory else ''}{last}{'?…' if self.query else ''}"

    def follow(self, location: str) -> Self:
        """Return the URL to which a redirect leads; raise InvalidArguments if it is not one of http."""
        try:
            return self.parse(urljoin(self.text, location))
        except ValueError:
            raise InvalidArguments("the redirect leads to no valid URL") from None

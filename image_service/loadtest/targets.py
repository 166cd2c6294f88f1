"""What is read: images at URLs, of which nothing is shown that could be a credential."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import attrs

from image_service.settings.parsers import address

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACEHOLDER = "{infra_env}"
"""In the template of a URL: an infra-env's identifier belongs there."""
_PORTS = {"http": 80, "https": 443}
_TARGET = re.compile(r"[!-~]*")  # visible ASCII: what a request line takes
_IDENTIFIER = re.compile(r"[0-9A-Za-z._~-]+")
_BUILD = re.compile(rf"/by[a-z]+/{re.escape(PLACEHOLDER)}/([^/]+)/([^/]+)/")


@attrs.frozen(order=True)
class Origin:
    """A server.

    Args:
        scheme: ``http`` or ``https``.
        host: name or IP literal, without brackets.
        port: TCP port.
        netloc: both, as a Host field has them.
    """

    scheme: str
    host: str
    port: int
    netloc: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


@attrs.frozen
class Target:
    """An image.

    Args:
        origin: where it is served.
        path: with its query: what a request line has.
    """

    origin: Origin
    path: str = attrs.field(repr=False)

    @property
    def digest_path(self) -> str:
        """Where its SHA-256 is, if the server offers it."""
        path, mark, query = self.path.partition("?")
        return f"{path}.sha256{mark}{query}"

    @property
    def label(self) -> str:
        """What people are told: server and file name. What is between them can hold a token."""
        return f"{self.origin}/…/{self.path.partition('?')[0].rpartition('/')[2]}"


def parse_target(url: str) -> Target:
    """Read the URL of an image.

    Args:
        url: http or https, with host and path, without credentials before the host.

    Returns:
        the image.

    Raises:
        ValueError: what is wrong, without telling the URL.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("has credentials before its host; --header takes them")
    if parts.scheme not in _PORTS or not parts.path.startswith("/"):
        raise ValueError("must be an http or https URL with a host and the path of an image")
    server = address(parts.netloc)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    if not _TARGET.fullmatch(path):
        raise ValueError("must be visible ASCII; other characters are percent-encoded")
    port = server.port or _PORTS[parts.scheme]
    return Target(Origin(parts.scheme, server.host, port, server.netloc), path)


def fill(template: str, infra_envs: Iterable[str]) -> list[str]:
    """Put infra-envs into a template.

    Args:
        template: with ``PLACEHOLDER``, or the URL of one image.
        infra_envs: identifiers.

    Returns:
        a URL for each; of a template that is none, itself.
    """
    if PLACEHOLDER not in template:
        return [template]
    return [template.replace(PLACEHOLDER, infra_env) for infra_env in infra_envs]


def build_of(template: str) -> tuple[str, str]:
    """Find the base image that a template's images are made of.

    Args:
        template: one of the routes that name version and architecture.

    Returns:
        version and architecture.

    Raises:
        ValueError: it names none.
    """
    found = _BUILD.search(template)
    if found:
        return found[1], found[2]
    query = parse_qs(urlsplit(template).query)
    if "version" not in query:
        raise ValueError("names no version for which an infra-env could be registered")
    return query["version"][0], query.get("arch", ["x86_64"])[0]


def parse_lines(text: str) -> list[str]:
    """Read a list of one entry a line; empty lines and those that begin with # are left out."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def check_identifiers(identifiers: Iterable[str]) -> None:
    """Refuse what cannot stand for an infra-env in a URL; raises ValueError that tells the first line."""
    for number, identifier in enumerate(identifiers, 1):
        if not _IDENTIFIER.fullmatch(identifier):
            raise ValueError(f"has no identifier as entry {number}, but something with other characters")

"""The plan of a load test: images at URLs, read by clients. URLs may hold credentials and are not shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import attrs

from image_service.core.formats.hosts import parse_authority

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.tools.loadtest.traffic.profiles import Profile

PLACEHOLDER = "{infra_env}"
"""In a URL template: replaced by an infra-env's identifier."""
_BEFORE_BUILD = -3  # version, architecture and file name end a path, and are not secrets
_SHORTEST_SECRET = 4
_PORTS = {"http": 80, "https": 443}
_PATH = re.compile(r"[!-~]*")  # visible ASCII, as in a request line
_BASE_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")
_IDENTIFIER = re.compile(r"[0-9A-Za-z._~-]+")
_BUILD = re.compile(rf"/by[a-z]+/{re.escape(PLACEHOLDER)}/([^/]+)/([^/]+)/")


@attrs.frozen(order=True)
class ServerOrigin:
    """A server.

    Args:
        scheme: ``http`` or ``https``.
        host: name or IP literal, without brackets.
        netloc: host and port as in a Host field.
    """

    scheme: str
    host: str
    port: int
    netloc: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


@attrs.frozen
class ImageTarget:
    """An image.

    Args:
        path: with the query, as in a request line.
    """

    origin: ServerOrigin
    path: str = attrs.field(repr=False)

    @property
    def digest_path(self) -> str:
        """The path of its SHA-256, if the server offers it."""
        path, mark, query = self.path.partition("?")
        return f"{path}.sha256{mark}{query}"

    @property
    def label(self) -> str:
        """Server and file name, for people; the path between them may hold a token."""
        return f"{self.origin}/…/{self.path.partition('?')[0].rpartition('/')[2]}"


@attrs.frozen(kw_only=True)
class Plan:
    """A load test.

    Args:
        targets: the images, at least one.
        requests_per_second: of each client; None: a client sends when its last response is complete.
        bytes_per_second: how fast each client reads; None: as fast as bytes arrive.
        timeout_seconds: a response without progress for so long fails.
        fields: further header fields; values may be credentials.
        checks: number of images that are read whole at the end, to compare their SHA-256.
        compose: content of the requests for composes; targets are composer APIs then.
    """

    targets: tuple[ImageTarget, ...]
    profile: Profile
    clients: int
    seconds: float
    requests_per_second: float | None = None
    bytes_per_second: float | None = None
    timeout_seconds: float = 10.0
    fields: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    checks: int = 1
    compose: bytes = attrs.field(default=b"", repr=False)

    @property
    def servers(self) -> list[str]:
        """The servers of the images, each once."""
        return sorted({str(target.origin) for target in self.targets})

    def redact(self, target: ImageTarget, text: str) -> str:
        """Return text of a server without possible credentials: parts of the URL, and values of fields."""
        path, _, query = target.path.partition("?")
        parts = [*path.split("/")[:_BEFORE_BUILD], *re.split("[&=]", query)]
        parts += [word for _, value in self.fields for word in value.split()]
        for part in sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True):
            text = text.replace(part, "…").replace(unquote(part), "…")
        return text


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # whose text may contain a password
        raise ValueError("must be a valid URL") from None


def parse_target(url: str) -> ImageTarget:
    """Parse the http(s) URL of an image; raises ValueError, whose message does not hold the URL."""
    parts = _split(url)
    if "@" in parts.netloc:
        raise ValueError("has credentials before its host; use --header instead")
    if parts.scheme not in _PORTS or not parts.path.startswith("/"):
        raise ValueError("must be an http or https URL with a host and the path of an image")
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    if not _PATH.fullmatch(path):
        raise ValueError("must be visible ASCII; percent-encode other characters")
    return ImageTarget(_parse_origin(parts.scheme, parts.netloc), path)


def parse_base_url(url: str) -> str:
    """Return an http(s) URL of scheme, host and path without a final slash; raises ValueError."""
    parts = _split(url)
    if parts.scheme not in _PORTS or "?" in url or "#" in url or not _BASE_PATH.fullmatch(parts.path):
        raise ValueError("must be an http or https URL of a host and a plain path")
    return f"{_parse_origin(parts.scheme, parts.netloc)}{parts.path.rstrip('/')}"


def _parse_origin(scheme: str, netloc: str) -> ServerOrigin:
    host, port = parse_authority(netloc)
    name = f"[{host}]" if ":" in host else host
    return ServerOrigin(scheme, host, port or _PORTS[scheme], f"{name}:{port}" if port else name)


def fill(template: str, infra_envs: Iterable[str]) -> list[str]:
    """Return a URL for each infra-env; a template without ``PLACEHOLDER`` itself."""
    if PLACEHOLDER not in template:
        return [template]
    return [template.replace(PLACEHOLDER, infra_env) for infra_env in infra_envs]


def build_of(template: str) -> tuple[str, str]:
    """Return version and architecture of the base image in a template; raises ValueError if it has none."""
    found = _BUILD.search(template)
    if found:
        return found[1], found[2]
    query = parse_qs(urlsplit(template).query)
    if "version" not in query:
        raise ValueError("names no version for which an infra-env could be registered")
    return query["version"][0], query.get("arch", ["x86_64"])[0]


def parse_lines(text: str) -> list[str]:
    """Return the lines of a list, without empty ones and comments (#)."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def check_identifiers(identifiers: Iterable[str]) -> None:
    """Raise ValueError for the first entry that cannot be an infra-env's identifier in a URL."""
    for number, identifier in enumerate(identifiers, 1):
        if not _IDENTIFIER.fullmatch(identifier):
            raise ValueError(f"has no identifier as entry {number}: other characters are in it")

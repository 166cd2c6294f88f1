"""Credentials are for the origins that the configuration names: a stream's metadata may name any other."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import attrs

from image_service.catalog.download.http_get import HttpGet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from image_service.catalog.download.http_get import Answer
    from image_service.concurrency.interruption import Interruption
    from image_service.settings.base_images import DownloadSettings


@attrs.frozen
class ConfiguredHttp(HttpGet):
    """Asks origins, those of the configuration with its credentials.

    Args:
        origins: scheme, host and port of each.
    """

    origins: frozenset[tuple[str, str | None, int | None]] = frozenset()

    @classmethod
    def configured(cls, settings: DownloadSettings, urls: Iterable[str]) -> Self:
        """Make one that sends the configured credentials to the origins of `urls` only."""
        plain = HttpGet.from_settings(settings)
        return cls(
            plain.trust,
            plain.headers,
            plain.parameters,
            plain.stall_seconds,
            frozenset(map(_origin, urls)),
        )

    @contextmanager
    def ask(self, url: str, fields: Mapping[str, str], interruption: Interruption) -> Iterator[Answer]:
        """Send a GET request, as ``HttpGet`` does; without credentials where they are not meant for."""
        asker: HttpGet = self
        if _origin(url) not in self.origins:
            asker = attrs.evolve(self, headers={}, parameters={})
        with HttpGet.ask(asker, url, fields, interruption) as answer:
            yield answer


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port (RFC 6454)."""
    split = urlsplit(url)
    return split.scheme, split.hostname, split.port or {"http": 80, "https": 443}.get(split.scheme)

"""The BMCs of a file, and who logs in."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import ConfigurationError
from image_service.core.formats.hosts import is_web_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_CREDENTIALS = 4096  # bytes of their file


@attrs.frozen
class BmcAddress:
    """A BMC to log in to.

    Args:
        url: of its Redfish service: ``https://bmc.example.com``.
        system: the ``Id`` of a system; None: its only one.
        credentials: the file of its user and password; None: those of the command.
    """

    url: str
    system: str | None = None
    credentials: str | None = None


def parse_bmc_url(text: str) -> str:
    """Return the URL of a Redfish service without a slash at its end; raise ValueError, without the URL."""
    url = text if "://" in text else f"https://{text}"
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("a BMC's URL must have no user and password: use --credentials or the environment")
    if not is_web_url(url) or urlsplit(url).path.strip("/") not in {"", "redfish/v1"}:
        raise ValueError("a BMC's URL must be like https://bmc.example.com")
    return f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"


def read_bmcs(text: str) -> Iterator[BmcAddress]:
    """Yield the BMCs of a file: a line each, ``URL [SYSTEM [CREDENTIALS-FILE]]``; - is the only system.

    Raises:
        ConfigurationError: a line is invalid; says which.
    """
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            url = parse_bmc_url(words[0])
        except ValueError as fault:
            raise ConfigurationError(f"line {number}: {fault}") from None
        if len(words) > len(attrs.fields(BmcAddress)):
            raise ConfigurationError(f"line {number}: must be URL [SYSTEM [CREDENTIALS-FILE]]")
        system, credentials = ([*words[1:], None, None])[:2]
        yield BmcAddress(url, None if system == "-" else system, credentials)


def read_credentials(path: Path) -> tuple[str, str]:
    """Return user and password of a file with one line ``USER:PASSWORD``.

    Raises:
        ConfigurationError: it has none; the message does not repeat its content.
    """
    with path.open("rb") as file:
        text = file.read(_MAX_CREDENTIALS).decode(errors="replace").rstrip("\r\n")
    user, colon, password = text.partition(":")
    if not (user and colon) or "\n" in text:
        raise ConfigurationError(f"{path} must have one line: USER:PASSWORD")
    return user, password

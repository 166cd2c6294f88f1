"""Settings of the administrative listener."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.http.origins import UrlOrigin, origin_of_url, parse_origin
from image_service.core.errors import FormatError
from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.settings.parsers import ListenAddress

MIN_TOKEN_LENGTH = 16
_MAX_FILE_BYTES = 4096


def read_token(path: Path) -> str:
    """Return the token in a file, without the white space around it.

    Raises:
        ValueError: the file cannot be read, or holds no valid token; the message does not repeat its content.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None
    if not MIN_TOKEN_LENGTH <= len(text) <= _MAX_FILE_BYTES or not parsers.BEARER_TOKEN.fullmatch(text):
        raise ValueError(
            f"must be a file of one token, of at least {MIN_TOKEN_LENGTH} letters, digits and . _ ~ + / -,"
            " with = at its end only; `openssl rand -base64 32` makes one"
        )
    return text


def _parse_token_file(value: str) -> Path:
    read_token(Path(value))
    return Path(value)


@attrs.frozen(kw_only=True)
class AdminSettings:
    """Administration."""

    listen: tuple[ListenAddress, ...] = setting(
        "ADMIN_LISTEN", parse=parsers.separated(parsers.listen), absent=()
    )
    """IP address and port of the administrative listener, such as `127.0.0.1:8081`; several are separated by
    commas. When it is set, `/metrics` and `/images` are there, and no longer on `LISTEN_PORT` and
    `HTTP_LISTEN_PORT`; `/health` and `/live` are on all of them. On loopback it speaks HTTP, beyond loopback
    HTTPS with the certificate of `HTTPS_CERT_FILE`; without that HTTP, which sends the token in clear. When
    not set: there is no such listener."""
    token_file: Path | None = setting("ADMIN_TOKEN_FILE", parse=_parse_token_file)
    """File of the token that requests to all of `ADMIN_LISTEN` need, except those for `/health`, `/live`
    and the files of the status page: one line of at least 16 letters, digits and `. _ ~ + / -`, such as
    `openssl rand -base64 32` makes. A client sends it as a bearer token, or as the password of Basic
    authentication with any user name; the status page asks for it. When the file has changed, the new token
    is valid, and neither the previous one nor a session that began with it. Required where an address of
    `ADMIN_LISTEN` is not on loopback; on loopback alone, every local user may use the listener without it."""

    @property
    def is_enabled(self) -> bool:
        """True if there is such a listener."""
        return bool(self.listen)

    @property
    def is_public(self) -> bool:
        """True if it listens beyond loopback."""
        return not all(address.is_loopback for address in self.listen)

    def local_url(self, *, has_certificate: bool) -> str | None:
        """Return the URL that reaches it from this machine; None: there is none, or its port is not fixed."""
        known = [address for address in self.listen if address.port]
        if not known:
            return None
        listen = max(known, key=lambda address: address.is_loopback)  # if none is, the first
        scheme = "https" if has_certificate and not listen.is_loopback else "http"
        return f"{scheme}://{listen.reached.netloc}/"

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        has_token = bool(environ.get("ADMIN_TOKEN_FILE"))
        if self.is_public and not has_token:
            yield "ADMIN_LISTEN is not on loopback; ADMIN_TOKEN_FILE must be set then"
        if has_token and not environ.get("ADMIN_LISTEN"):
            yield "ADMIN_TOKEN_FILE is set without ADMIN_LISTEN; the token would protect nothing"


def _parse_webhook(value: str) -> str:
    try:
        origin_of_url(value, "it")
    except FormatError as error:
        raise ValueError(f"must be an http or https URL; {error.detail}") from None
    return value


def _parse_origin(value: str) -> UrlOrigin:
    try:
        return parse_origin(value)
    except FormatError as error:
        raise ValueError(f"must be SCHEME://HOST[:PORT]; {error.detail}") from None


@attrs.frozen(kw_only=True)
class WebhookSettings:
    """Notifications about machines."""

    url: str | None = setting("WEBHOOK_URL", parse=_parse_webhook, is_secret=True, from_file=True)
    """URL to which the service posts a JSON document when a machine is quiet, stalled or done; `@FILE`: the
    file has it. See `docs/mounts.md`. Its host must have public addresses only, unless `WEBHOOK_ALLOW_HOST`
    names it. It is read at the start alone. When not set: nothing is posted."""
    allowed_origins: tuple[UrlOrigin, ...] = setting(
        "WEBHOOK_ALLOW_HOST", parse=parsers.separated(_parse_origin), absent=()
    )
    """Scheme, host and port to which the service may post although its address is not public, such as
    `https://chat.lab:8443`; several are separated by commas."""


@attrs.frozen(kw_only=True)
class LinkSettings:
    """Short links."""

    max_seconds: int = setting("LINK_MAX_SECONDS", parse=parsers.whole_number(1), default="2592000")
    """How long a short link may be valid, in seconds; it is made on `ADMIN_LISTEN`, for a day unless the
    request says otherwise. A change does not affect links that exist. The default is 30 days."""

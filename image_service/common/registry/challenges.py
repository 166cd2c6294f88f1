"""``WWW-Authenticate`` of registries (RFC 9110 section 11.6.1), and the tokens that their servers issue."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEME = re.compile(r"[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:\s+|$)(?!=)")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_MIN_SECONDS = 60  # what the protocol of tokens says where nothing is said
_MAX_SECONDS = 24 * 3600


@attrs.frozen
class Challenge:
    """One way to authenticate.

    Args:
        scheme: in lower case.
        parameters: by names in lower case.
    """

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(field: str) -> tuple[Challenge, ...]:
    """Return the challenges of a field, up to the first text that is not a challenge."""
    found: list[Challenge] = []
    position = 0
    while scheme := _SCHEME.match(field, position):
        position = scheme.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(field, position):
            name, quoted, plain = parameter.groups()
            parameters[name.lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            position = parameter.end()
        found.append(Challenge(scheme[1].lower(), parameters))
    return tuple(found)


def token_url(challenge: Challenge, scope: str, *, is_plain: bool) -> str:
    """Return the URL to get a token from.

    Args:
        challenge: of the scheme Bearer.
        scope: where the challenge has none.
        is_plain: the registry itself is reached without TLS.

    Raises:
        FormatError: its realm cannot be used.
    """
    realm = challenge.parameters.get("realm", "")
    try:
        split = urlsplit(realm)
    except ValueError:
        split = urlsplit("")
    if split.scheme not in {"http", "https"} or not split.hostname or "@" in split.netloc:
        raise FormatError("its challenge names no URL to get a token from")
    if split.scheme == "http" and not is_plain:
        raise FormatError(f"its token server {split.netloc!r:.100} would get the credentials without TLS")
    query = urlencode(
        {
            **({"service": challenge.parameters["service"]} if "service" in challenge.parameters else {}),
            "scope": challenge.parameters.get("scope") or scope,
        }
    )
    return split._replace(query=f"{split.query}&{query}" if split.query else query, fragment="").geturl()


@attrs.frozen
class BearerToken:
    """A token.

    Args:
        seconds: for which it is valid.
    """

    text: str = attrs.field(repr=False)
    seconds: float


def parse_token(content: bytes) -> BearerToken:
    """Return the token in the answer of a token server; FormatError if there is none."""
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    members = document if isinstance(document, dict) else {}
    text = members.get("token") or members.get("access_token")
    if not isinstance(text, str) or not re.fullmatch(r"[!-~]+", text):
        raise FormatError("its token server sent no token")
    seconds = members.get("expires_in")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return BearerToken(text, _MIN_SECONDS)
    return BearerToken(text, min(max(seconds, 1.0), _MAX_SECONDS))

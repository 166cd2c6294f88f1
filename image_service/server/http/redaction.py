"""Request targets and details of errors as the log may show them: without credentials, short, printable."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN = "***"
MAX_TARGET = 256
"""Characters of a target that are shown."""
MAX_DETAIL = 600
"""Characters of a detail that are shown."""

_MAX_SEGMENT = 64  # characters; a credential may be longer, a name of ours is not
_MAX_ESCAPED = 12 * _MAX_SEGMENT  # as sent: a character is up to four bytes, each of them %XX
_MAX_SEGMENTS = 16
_MAX_PARAMETERS = 8
_PLAIN = re.compile(r"[A-Za-z0-9._~+,-]*")
# RFC 7519: three parts, the first of which is the base64url of an object, so that of "{" and a character.
_JWT = r"\be[w-z0-9_-][\w=-]*\.[\w=-]*\.[\w=-]*|eyJ[\w=-]*"
_CREDENTIAL = re.compile(rf"{_JWT}|\w{{33,}}|(?s:.{{{_MAX_SEGMENT + 1},}})", re.ASCII)
_IN_URL = r"(?<=://)[^\s/@]*@|(?<=\S)\?[^\s=?]*=\S*"  # user information, a query
_CREDENTIAL_IN_TEXT = re.compile(rf"{_JWT}|{_IN_URL}|[\w.+~-]{{{_MAX_SEGMENT + 1},}}", re.ASCII)
_CREDENTIAL_WORDS = (
    "token",
    "key",
    "secret",
    "password",
    "auth",
)  # those of /bytoken and /byapikey, and more
_SHORT_LINKS = "s"  # the segment before the code
_PUBLIC_PARAMETERS = frozenset({"type", "version", "arch", "digest"})


def redact_target(target: str) -> str:
    """Return a request target for the log, with `***` in place of each part that is, or may be, a credential.

    Everything behind a path segment such as `bytoken`, or `s` of a short link, is hidden, except version,
    architecture and file of a complete URL. Other segments are shown up to the first character that no name
    of ours has, unless they look like a credential. Of the query, only the parameters that describe the image
    are shown.
    """
    path, _, query = target.partition("?")
    shown = "/".join(_redact_segments(path.split("/", _MAX_SEGMENTS)))
    if query:
        parameters = query.split("&", _MAX_PARAMETERS)
        shown = f"{shown}?{'&'.join(map(_redact_parameter, parameters))}"
    return _shorten(shown, MAX_TARGET)


def redact_detail(detail: str, characters: int = MAX_DETAIL) -> str:
    """Return an error's detail on one line, without words that look like a credential, and limited."""
    text = _CREDENTIAL_IN_TEXT.sub(HIDDEN, detail[: 4 * MAX_DETAIL])
    if not text.isprintable():
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return _shorten(text, characters)


def _redact_segments(segments: list[str]) -> Iterator[str]:
    for index, segment in enumerate(segments):
        text = _decode(segment)
        yield _redact(text)
        word = None if text is None else text.lower()
        if word is None or word == _SHORT_LINKS or any(part in word for part in _CREDENTIAL_WORDS):
            following = segments[index + 1 :]
            if following:
                yield HIDDEN
            is_route = word is not None and word.isalpha()
            if is_route and len(following) == len(("credential", "version", "architecture", "file")):
                yield from map(_redact, map(_decode, following[1:]))
            return


def _redact_parameter(parameter: str) -> str:
    name, _, value = parameter.partition("=")
    return f"{name}={_redact(_decode(value))}" if name in _PUBLIC_PARAMETERS else HIDDEN


def _decode(segment: str) -> str | None:
    """Return a segment without percent-encoding; None: it is too long to be shown, and costs nothing."""
    return unquote(segment) if len(segment) <= _MAX_ESCAPED else None


def _redact(text: str | None) -> str:
    if text is None or "@" in text or _CREDENTIAL.search(text):
        return HIDDEN
    plain = _PLAIN.match(text)
    shown = plain[0] if plain else ""
    return shown if shown == text else shown + HIDDEN


def _shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 3]}..."

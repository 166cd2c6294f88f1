"""Host names, IP addresses and URLs of settings, checked in one place (RFC 1035, RFC 3986, RFC 5891)."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv6Address
from unicodedata import normalize
from urllib.parse import urlsplit

MAX_PORT = 65535
_MAX_NAME = 253  # characters; with the lengths of the labels, 255 octets in a message of DNS
_MAX_LABEL = 63
_ZONE = re.compile(r"[A-Za-z0-9._~-]*")  # RFC 6874, without escapes
# authority = host [ ":" port ] (RFC 3986 section 3.2) without user information and escapes
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"[A-Za-z0-9._\x80-\U0010ffff-]+")  # also of what an internationalized name has


def ascii_host(text: str) -> str:
    """Return a host name, or an IP address without brackets, as it is resolved: in ASCII.

    The labels of an internationalized name become A-labels (``xn--…``). Python's codec has the rules of 2003,
    which for few names yield another name than those of 2008, as browsers have them; these are refused.

    Raises:
        ValueError: the text is not valid; the message names the fault.
    """
    if ":" in text:
        return _ipv6(text)
    if not _NAME.fullmatch(text):
        raise ValueError("must have a host name or IP address")
    name = text.removesuffix(".")  # of the root
    longest = max(map(len, name.split(".")))
    if "" in name.split(".") or longest > _MAX_LABEL or len(name) > _MAX_NAME:
        raise ValueError(
            f"must have a host name of at most {_MAX_NAME} characters, with 1 to {_MAX_LABEL} in each label"
        )
    return text if text.isascii() else _to_ascii(text)


def _ipv6(text: str) -> str:
    with suppress(ValueError):
        address = IPv6Address(text)
        if _ZONE.fullmatch(address.scope_id or ""):
            return str(address)
    raise ValueError("must have a valid IPv6 address")


def _to_ascii(name: str) -> str:
    with suppress(UnicodeError):
        encoded = name.encode("idna")
        if len(encoded) <= _MAX_NAME and encoded.decode("idna") == normalize("NFC", name).lower():
            return encoded.decode("ascii")
    raise ValueError("must have a valid internationalized host name, or its ASCII form (xn--…)")


def parse_authority(text: str) -> tuple[str, int | None]:
    """Return host and port of ``host[:port]``, with an IPv6 address in brackets; None: it has no port.

    Raises:
        ValueError: the text is not valid; the message names the fault.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError(
            "must be a host name or IP address, with :port if need be; IPv6 with a port as [::1]:80,"
            " an internationalized name as xn--…"
        )
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port <= MAX_PORT:
        raise ValueError(f"must have a port from 1 to {MAX_PORT}")
    return (_ipv6(match["v6"]) if match["v6"] else ascii_host(match["name"])), port


def is_authority(text: str) -> bool:
    """Return True for what `parse_authority` parses."""
    try:
        parse_authority(text)
    except ValueError:
        return False
    return True


def is_web_url(value: str) -> bool:
    """Return True for an http(s) URL that can be fetched as it stands: escaped, no fragment, no user name."""
    if not re.fullmatch(r"[!-~]+", value) or "#" in value:
        return False
    try:
        split = urlsplit(value)
    except ValueError:
        return False
    return split.scheme in {"http", "https"} and is_authority(split.netloc)


def host_fault(url: str) -> str:
    """Return the fault of a URL's host name, as a sentence for messages; "" if it is valid or absent."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    try:
        ascii_host(host or "localhost")
    except ValueError as fault:
        return str(fault)
    return ""

"""Parsers of environment variables.

A parser raises ``ValueError`` with one argument per fault, which describes a valid text. Its caller adds
the variable's name, and the text unless that is a secret: a parser of secrets must not repeat them.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.hosts import MAX_PORT, parse_authority
from image_service.core.formats.openpgp import read_key_ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

MAX_FILE_BYTES = 1024**2
MAX_SECONDS = 1_000_000  # timers of the operating system count milliseconds in 31 bits: 24 days

# The spellings of Go's strconv.ParseBool, which assisted-image-service uses.
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})

WEB_URL = (
    "http:// or https:// URL with a valid host, escaped, with no fragment and no user name "
    "(credentials go into OS_IMAGES_REQUEST_HEADERS)"
)
# Only characters that need no escape: a request's path is compared as it was sent.
_BASE_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")
# The serialized origin of RFC 6454 section 6.2 in lower case; one "*" may stand anywhere in it, and at its
# beginning for the scheme too: https://*.example.com, http://localhost:*, *.example.com
_ORIGIN = re.compile(r"(?:[a-z*][a-z0-9+.*-]*://|(?=\*))(?:\[[0-9a-f:.]+\]|[a-z0-9._*-]+)(?::[0-9*]{1,6})?")
# token = 1*tchar (RFC 9110 section 5.6.2)
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# field-value of RFC 9110 section 5.5 without obs-text; neither empty nor with white space around it
_FIELD_VALUE = re.compile(r"[!-~](?:[ -~\t]*[!-~])?")
# b64token (RFC 6750 section 2.1), which is how a bearer token travels
BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


@attrs.frozen
class Address:
    """A host (name or IP literal, without brackets) and a port; None: the scheme's default."""

    host: str
    port: int | None

    @property
    def netloc(self) -> str:
        """As in a URL: ``name``, ``name:port``, ``[::1]:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


@attrs.frozen
class ListenAddress:
    """An IP literal (without brackets) and a port to listen on; port 0: any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def reached(self) -> Address:
        """The address that reaches it from this machine: loopback, if it listens on all addresses."""
        host = ipaddress.ip_address(self.host)
        return Address(_LOOPBACK[host.version] if host.is_unspecified else str(host), self.port)


def raise_faults(faults: Iterable[str]) -> None:
    """Raise a ValueError of all faults, if there are any."""
    if found := tuple(faults):
        raise ValueError(*found)


def separated(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of entries that are separated by commas; a fault names its entry."""

    def parse_all(value: str) -> tuple[T, ...]:
        found, faults = [], []
        for entry in map(str.strip, value.split(",")):
            try:
                found.append(parse(entry))
            except ValueError as error:
                faults += [f"{entry!r} {fault}" for fault in error.args]
        raise_faults(faults)
        return tuple(found)

    return parse_all


def one_of(*names: str, **synonyms: str) -> Callable[[str], str]:
    """Return a parser of names, in any case; it maps a synonym to its name."""
    choices = {**dict(zip(names, names, strict=True)), **synonyms}

    def parse(value: str) -> str:
        try:
            return choices[value.lower()]
        except KeyError:
            raise ValueError(f"must be one of {', '.join(choices)}") from None

    return parse


_LOG_LEVELS = ("debug", "info", "warn", "error", "critical")  # those of twisted.logger
# The others are names of logrus, which assisted-image-service uses.
log_level = one_of(*_LOG_LEVELS, trace="debug", warning="warn", fatal="critical", panic="critical")


def flag(value: str) -> bool:
    """Parse a truth value as Go spells it."""
    if value not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return value in _TRUE


def whole_number(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """Return a parser of decimal integers, bounds included."""
    bounds = f"{lowest} or more" if highest is None else f"from {lowest} to {highest}"

    def parse(value: str) -> int:
        number = int(value) if re.fullmatch(r"[0-9]{1,18}", value) else -1
        if not lowest <= number <= (highest or number):
            raise ValueError(f"must be a whole number, {bounds}")
        return number

    return parse


port = whole_number(0, MAX_PORT)


def _number_of_seconds(bounds: str, lowest: float) -> Callable[[str], float]:
    def parse(value: str) -> float:
        with suppress(ValueError):
            if lowest <= float(value) <= MAX_SECONDS:
                return float(value)
        raise ValueError(f"must be a number of seconds, {bounds} {MAX_SECONDS}")

    return parse


seconds = _number_of_seconds("more than 0 and at most", math.ulp(0))  # the smallest number above 0
delay = _number_of_seconds("from 0 to", 0)


def address(value: str) -> Address:
    """Parse ``host[:port]``; an IPv6 literal stands in brackets, or bare where no port follows."""
    with suppress(ValueError):
        return Address(str(ipaddress.IPv6Address(value)), None)
    return Address(*parse_authority(value))


def ip_address(value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address, without brackets; one of IPv4 that is written as IPv6 becomes IPv4."""
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError("must be an IP address, such as 127.0.0.1, 0.0.0.0 or ::") from None
    return getattr(address, "ipv4_mapped", None) or address


def listen(value: str) -> ListenAddress:
    """Parse ``address:port`` to listen on; ``localhost`` is 127.0.0.1."""
    host, _, number = value.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.removeprefix("[").removesuffix("]"))
    try:
        return ListenAddress(str(ipaddress.ip_address(host)), port(number))
    except ValueError:
        raise ValueError("must be an IP address and a port, such as 127.0.0.1:8090 or [::1]:8090") from None


def base_url(value: str) -> str:
    """Parse an http(s) URL of scheme, host and path alone; returned without a slash at its end."""
    split = urlsplit(value)
    if split.scheme not in {"http", "https"} or "?" in value or "#" in value:
        raise ValueError("must be an http or https URL without query and fragment")
    if not _BASE_PATH.fullmatch(split.path):
        raise ValueError("must have a path of letters, digits and . _ ~ - alone")
    return f"{split.scheme}://{address(split.netloc).netloc}{split.path.rstrip('/')}"


def networks(value: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Parse addresses and CIDR blocks, separated by commas."""
    found, faults = [], []
    for entry in value.split(","):
        try:
            found.append(ipaddress.ip_network(entry.strip()))
        except ValueError:
            faults.append(f"{entry.strip()!r} must be an address or a CIDR block, such as 10.0.0.0/8")
    raise_faults(faults)
    return tuple(found)


def origins(value: str) -> tuple[str, ...]:
    """Parse origins separated by commas, in any case; each may have one ``*`` (as in rs/cors)."""
    entries = tuple(entry.strip().lower() for entry in value.split(",") if entry.strip())
    raise_faults(
        f"{entry!r} must be * or an origin such as https://console.example.com, without a path; one * in it"
        " stands for any characters"
        for entry in entries
        if entry.count("*") > 1 or not _ORIGIN.fullmatch(entry)
    )
    return entries


def readable_file(value: str) -> Path:
    """Return the path of a readable file."""
    try:
        with Path(value).open("rb"):
            return Path(value)
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None


def file_content(value: str) -> str:
    """Return the text of a small file, without white space around it; `value` is its absolute path."""
    path = Path(value)
    if not path.is_absolute():
        raise ValueError("must have the absolute path of a file after the @")
    try:
        if path.exists() and not path.is_file():
            raise ValueError("must be a regular file")  # reading a FIFO could wait forever
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) <= MAX_FILE_BYTES:
            return content.decode().strip()
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"must be a file in UTF-8: byte {error.start} is not") from None
    raise ValueError(f"must be a file of at most {MAX_FILE_BYTES} bytes")


def ca_file(value: str) -> Path:
    """Return the path of a file of PEM certificates."""
    path = readable_file(value)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        raise ValueError("must be a file of certificates in PEM form") from None
    return path


def key_ring(value: str) -> Path:
    """Return the path of a file of OpenPGP public keys."""
    path = readable_file(value)
    try:
        read_key_ring(path.read_bytes())
    except FormatError as error:
        raise ValueError(f"must be an OpenPGP key ring: {error.detail}") from None
    return path


def directory(value: str) -> Path:
    """Return the path of a directory that is there."""
    if not os.path.isdir(value):  # noqa: PTH112 - Path.is_dir raises if a directory above is locked
        raise ValueError("must be a directory that exists")
    return Path(value)


def writable_directory(value: str) -> Path:
    """Return the path of a directory that can be written, or created."""
    path = Path(value)
    existing = path.absolute()
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not os.path.isdir(existing):  # noqa: PTH112 - Path.is_dir raises if a directory above is locked
        raise ValueError(f"must be a writable directory; {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"must be a writable directory; {_why_not_writable(existing)}")
    return path


def _why_not_writable(directory: Path) -> str:
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{directory} is on a read-only file system"
    status = directory.stat()
    return (
        f"{directory} belongs to uid {status.st_uid} and gid {status.st_gid} with mode"
        f" {stat.S_IMODE(status.st_mode):04o}; uid {os.geteuid()} may not write to it"
    )


def bearer_token(value: str) -> str:
    """Return a token that an ``Authorization: Bearer`` field can hold."""
    if not BEARER_TOKEN.fullmatch(value):
        raise ValueError("must be made of letters, digits and . _ ~ + / -, with = at its end only")
    return value


def json_entries(value: str, faults_of: Callable[[object], Iterable[str]]) -> list[Any]:
    """Return the entries of a JSON list; raises the faults of all of them, each with its index."""
    try:
        document: object = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON: {error}") from None
    if not isinstance(document, list) or not document:
        raise ValueError("must be a JSON list with at least one entry")
    raise_faults(
        f"entry {index}: {fault}" for index, entry in enumerate(document) for fault in faults_of(entry)
    )
    return document


def string_map(value: str) -> Mapping[str, str]:
    """Parse a JSON object of strings."""
    try:
        document: object = json.loads(value)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not all(isinstance(item, str) for item in document.values()):
        raise ValueError("must be a JSON object whose values are strings")
    return MappingProxyType(document)


def field_map(value: str) -> Mapping[str, str]:
    """Parse a JSON object of HTTP header fields."""
    fields = string_map(value)
    faults = [f"{name!r} is not a field name" for name in fields if not _FIELD_NAME.fullmatch(name)]
    faults += [
        f"the value of {name!r} must be visible ASCII, without white space around it"
        for name, item in fields.items()
        if not _FIELD_VALUE.fullmatch(item)
    ]
    raise_faults(faults)
    return fields

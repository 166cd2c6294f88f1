"""``COREOS_STREAMS``: the streams that base images are taken from, parsed.

A stream's name becomes part of URL paths and file names, and can be requested in the place of an OpenShift
version: it has the same syntax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.families.coreos.build_names import (
    ARCHITECTURE,
    ARCHITECTURE_FAULT,
    VERSION,
    VERSION_FAULT,
)
from image_service.core.formats.hosts import host_fault, is_web_url
from image_service.settings import parsers

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP = 2
MAX_KEEP = 100


@attrs.frozen
class StreamSource:
    """A stream and its source."""

    stream: str  # its name here
    url: str = attrs.field(repr=False)  # of its metadata; its query may hold a credential
    architectures: tuple[str, ...]  # RPM architecture names; never empty
    keep: int = KEEP  # how many of the newest releases are kept, for each architecture


def parse_coreos_streams(value: str) -> tuple[StreamSource, ...]:
    """Return the streams of a JSON list; unknown members are ignored.

    Raises:
        ValueError: one argument per fault, each naming entry and member, none repeating a URL.
    """
    entries = parsers.json_entries(value, _faults)
    names = [entry["stream"] for entry in entries]
    parsers.raise_faults(f"{names.count(name)} entries have the stream {name}" for name in _repeated(names))
    return tuple(
        StreamSource(entry["stream"], entry["url"], tuple(entry["architectures"]), entry.get("keep", KEEP))
        for entry in entries
    )


def _faults(entry: object) -> Iterable[str]:
    """Return the faults of one entry."""
    if not isinstance(entry, dict):
        yield "must be an object"
        return
    stream = entry.get("stream")
    if not isinstance(stream, str):
        yield "stream must be a string, in double quotes"
    elif not VERSION.fullmatch(stream):
        yield f"stream {VERSION_FAULT}"
    url, architectures = entry.get("url"), entry.get("architectures")
    if not isinstance(url, str) or not is_web_url(url):
        yield f"url {host_fault(str(url)) or f'must be an {parsers.WEB_URL}'}"
    if not isinstance(architectures, list) or not architectures:
        yield "architectures must be a list of at least one"
    elif not all(isinstance(each, str) and ARCHITECTURE.fullmatch(each) for each in architectures):
        yield f"architectures: each {ARCHITECTURE_FAULT}"
    elif _repeated(architectures):
        yield "architectures: each must be there once"
    keep = entry.get("keep", KEEP)
    if type(keep) is not int or not 1 <= keep <= MAX_KEEP:
        yield f"keep must be a whole number from 1 to {MAX_KEEP}, or absent"


def _repeated(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]

"""``COREOS_STREAMS``: the streams that base images are taken from, parsed.

A stream's name becomes part of URL paths and file names, and can be requested in the place of an OpenShift
version: it has the same syntax.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs

from image_service.common.registry.references import is_registry_url, parse_registry_url
from image_service.core.errors import FormatError
from image_service.core.families.coreos.build_names import (
    ARCHITECTURE_FAULT,
    VERSION,
    VERSION_FAULT,
    is_architecture,
    rpm_architecture,
)
from image_service.core.formats.hosts import host_fault
from image_service.settings import parsers
from image_service.settings.os_images import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP = 2
MAX_KEEP = 100
_ARTIFACT = re.compile(r"(?!metal/iso$|metal/pxe$)[a-z0-9][a-z0-9-]{0,31}/[a-z0-9][a-z0-9.]{0,31}")


@attrs.frozen
class StreamSource:
    """A stream and its source."""

    stream: str  # its name here
    # of its metadata or of a ConfigMap: ``file``, ``http``, ``https``, whose query may hold a credential; or
    # of a release payload: ``release``
    url: str = attrs.field(repr=False)
    architectures: tuple[str, ...]  # RPM architecture names; never empty
    keep: int = KEEP  # how many of the newest releases are kept, for each architecture
    config_map_stream: str | None = None  # its name in the ConfigMap; None: as here
    openshift_version: str | None = None  # that its releases are for
    mirror: tuple[str, ...] = ()  # further artifacts to mirror, as ``PLATFORM/FORMAT``

    @property
    def key(self) -> str:
        """Its name in a ConfigMap."""
        return self.config_map_stream or self.stream

    @property
    def local_path(self) -> Path | None:
        """The path of a ``file`` URL; None for other URLs."""
        split = urlsplit(self.url)
        return Path(unquote(split.path)) if split.scheme == "file" else None


def parse_coreos_streams(value: str) -> tuple[StreamSource, ...]:
    """Return the streams of a JSON list; unknown members are ignored.

    Raises:
        ValueError: one argument per fault, each naming entry and member, none repeating a URL.
    """
    entries = parsers.json_entries(value, _faults)
    names = [entry["stream"] for entry in entries]
    parsers.raise_faults(f"{names.count(name)} entries have the stream {name}" for name in _repeated(names))
    return tuple(
        StreamSource(
            entry["stream"],
            entry["url"],
            tuple(map(rpm_architecture, entry["architectures"])),
            entry.get("keep", KEEP),
            entry.get("config_map_stream"),
            entry.get("openshift_version"),
            tuple(entry.get("mirror", ())),
        )
        for entry in entries
    )


def _faults(entry: object) -> Iterable[str]:
    """Return the faults of one entry."""
    if not isinstance(entry, dict):
        yield "must be an object"
        return
    for name in ("stream", *(each for each in ("config_map_stream", "openshift_version") if each in entry)):
        if not isinstance(entry.get(name), str):
            yield f"{name} must be a string, in double quotes"
        elif not VERSION.fullmatch(entry[name]):
            yield f"{name} {VERSION_FAULT}"
    url = entry.get("url")
    if isinstance(url, str) and is_registry_url(url):
        yield from _payload_faults(url)
    elif not isinstance(url, str) or not is_url(url):
        more = "or release://HOST/REPOSITORY, then :TAG or @DIGEST"
        yield f"url {host_fault(str(url)) or f'must be a file:///path, {parsers.WEB_URL}, {more}'}"
    yield from _architecture_faults(entry.get("architectures"))
    keep = entry.get("keep", KEEP)
    if type(keep) is not int or not 1 <= keep <= MAX_KEEP:
        yield f"keep must be a whole number from 1 to {MAX_KEEP}, or absent"
    mirror = entry.get("mirror", [])
    if not isinstance(mirror, list) or not all(
        isinstance(each, str) and _ARTIFACT.fullmatch(each) for each in mirror
    ):
        yield "mirror must be a list of artifacts such as metal/raw.xz, not metal/iso or metal/pxe; or absent"


def _payload_faults(url: str) -> Iterable[str]:
    try:
        file = parse_registry_url(url)
    except FormatError as error:
        yield f"url {error.detail}"
        return
    if not file.is_release or file.path:
        yield (
            "url in a registry must be that of a release payload, such as release://quay.example/release:5.0;"
            " the stream in it is config_map_stream, or stream"
        )


def _architecture_faults(architectures: object) -> Iterable[str]:
    if not isinstance(architectures, list) or not architectures:
        yield "architectures must be a list of at least one"
    elif not all(isinstance(each, str) and is_architecture(each) for each in architectures):
        yield f"architectures: each {ARCHITECTURE_FAULT}"
    elif _repeated([rpm_architecture(each) for each in architectures]):
        yield "architectures: each must be there once"


def _repeated(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]

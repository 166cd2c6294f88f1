"""``OS_IMAGES``: the configured base images, parsed and merged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs

from image_service.coreos.names import ARCHITECTURE, ARCHITECTURE_FAULT, VERSION, VERSION_FAULT, is_web_url
from image_service.settings import parsers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FULL_ISO = "full-iso"
TYPES = (FULL_ISO, "disconnected-iso")

SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_URL_FAULT = (
    "must be a file:///path, http:// or https:// URL, escaped, with no fragment and no user name "
    "(credentials go into OS_IMAGES_REQUEST_HEADERS)"
)


@attrs.frozen
class OsImage:
    """A base image and its source.

    Args:
        version: of the OS build.
        cpu_architecture: RPM architecture name.
        image_type: ``full-iso`` or ``disconnected-iso``.
        openshift_versions: that it is for, the highest first; never empty.
        url: ``file``, ``http`` or ``https``; its query may hold a credential.
        sha256: digest of the file, lower-case hex; None: unknown.
        signature_url: of its detached OpenPGP signature; None: the image's URL with ``.sig`` appended to the
            path.
    """

    version: str
    cpu_architecture: str
    image_type: str
    openshift_versions: tuple[str, ...]
    url: str = attrs.field(repr=False)
    sha256: str | None = None
    signature_url: str | None = attrs.field(default=None, repr=False)

    @property
    def file_name(self) -> str:
        """Its name in ``DATA_DIR``."""
        return f"rhcos-{self.image_type}-{self.version}-{self.cpu_architecture}.iso"

    @property
    def local_path(self) -> Path | None:
        """The path of a ``file`` URL; None for other URLs."""
        split = urlsplit(self.url)
        return Path(unquote(split.path)) if split.scheme == "file" else None


def parse_os_images(value: str) -> tuple[OsImage, ...]:
    """Return the images of a JSON list, in the order of their first entries.

    Entries of one version, architecture and type are one image. Unknown members are ignored.

    Raises:
        ValueError: one argument per fault, each naming entry and member, none repeating a URL.
    """
    document, faults = parsers.json_entries(value, _faults)
    images = [] if faults else _merge(document)
    faults += [] if faults else _conflicts(images, document)
    if faults:
        raise ValueError(*faults)
    return tuple(images)


def _faults(entry: object) -> Iterable[str]:
    """The faults of one entry."""
    if not isinstance(entry, dict):
        yield "must be an object"
        return
    for name, (is_right, message) in _MEMBERS.items():
        member = entry.get(name)
        if name not in entry:
            yield f"{name} is missing; it {message}"
        elif not isinstance(member, str) or not is_right(member):
            yield f"{name} {message}"
    digest = entry.get("sha256")
    if "sha256" in entry and not (isinstance(digest, str) and SHA256.fullmatch(digest)):
        yield "sha256 must be 64 hexadecimal digits, or absent"
    if entry.get("type", FULL_ISO) not in TYPES:
        yield f"type must be one of {', '.join(TYPES)}, or absent"


def is_url(value: str) -> bool:
    """Return True for a URL that can be fetched, or a ``file`` URL that can be opened, as it stands."""
    split = urlsplit(value) if re.fullmatch(r"file:[!-~]+", value) and "#" not in value else None
    if split is None:
        return is_web_url(value)
    return split.netloc in {"", "localhost"} and split.path.startswith("/") and not split.query


_MEMBERS: dict[str, tuple[Callable[[str], object], str]] = {
    "openshift_version": (VERSION.fullmatch, VERSION_FAULT),
    "cpu_architecture": (ARCHITECTURE.fullmatch, ARCHITECTURE_FAULT),
    "url": (is_url, _URL_FAULT),
    "version": (VERSION.fullmatch, VERSION_FAULT),
}


def _merge(entries: Iterable[Mapping[str, str]]) -> list[OsImage]:
    """One image for all entries with the same file name and URL."""
    merged: dict[tuple[str, str, str, str], list[Mapping[str, str]]] = {}
    for entry in entries:
        key = (entry["version"], entry["cpu_architecture"], entry.get("type", FULL_ISO), entry["url"])
        merged.setdefault(key, []).append(entry)
    images = []
    for (version, architecture, kind, url), same in merged.items():
        openshift_versions = {entry["openshift_version"] for entry in same}
        in_order = tuple(sorted(openshift_versions, key=precedence, reverse=True))
        digest = next(iter(_digests(same)), None)
        images.append(OsImage(version, architecture, kind, in_order, url, digest))
    return images


def _digests(entries: Iterable[Mapping[str, str]]) -> set[str]:
    return {entry["sha256"].lower() for entry in entries if "sha256" in entry}


def _conflicts(images: Iterable[OsImage], entries: Iterable[Mapping[str, str]]) -> list[str]:
    """The images that have more than one URL, or more than one digest."""
    digests: dict[str, set[str]] = {}
    for entry in entries:
        digests.setdefault(_merge([entry])[0].file_name, set()).update(_digests([entry]))
    names = [image.file_name for image in images]
    return [
        f"entries of {name} have {number} different {what}s; one image must have one {what}"
        for name in dict.fromkeys(names)
        for what, number in (("url", names.count(name)), ("sha256", len(digests[name])))
        if number > 1
    ]


def precedence(version: str) -> tuple[object, ...]:
    """Return a sort key in the order of semantic versioning: 4.9 < 4.18.0-ec.0 < 4.18 < 4.18.1."""
    release, _, pre_release = version.partition("-")
    return (
        _identifiers(re.sub(r"(\.0)+$", "", release)),
        not pre_release,
        _identifiers(pre_release),
        version,
    )


def _identifiers(value: str) -> tuple[tuple[bool, int, str], ...]:
    """Dot-separated identifiers: numbers by value, before all texts."""
    return tuple((False, int(part), "") if part.isdecimal() else (True, 0, part) for part in value.split("."))

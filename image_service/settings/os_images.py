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
_URL_FAULT = f"must be a file:///path, {parsers.WEB_URL}"


@attrs.frozen
class OsImage:
    """A base image and its source."""

    version: str  # of the OS build
    cpu_architecture: str  # RPM architecture name
    image_type: str  # one of `TYPES`
    openshift_versions: tuple[str, ...]  # that it is for, the highest first; never empty
    url: str = attrs.field(repr=False)  # ``file``, ``http`` or ``https``; its query may hold a credential
    sha256: str | None = None  # of the file, lower-case hex; None: unknown
    # of its detached OpenPGP signature; None: the image's URL with ``.sig`` appended to the path
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
    same_image: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for entry in parsers.json_entries(value, _faults):
        key = (entry["version"], entry["cpu_architecture"], entry.get("type", FULL_ISO))
        same_image.setdefault(key, []).append(entry)
    images, faults = [], []
    for key, same in same_image.items():
        urls = list(dict.fromkeys(entry["url"] for entry in same))
        digests = {entry["sha256"].lower() for entry in same if "sha256" in entry}
        openshift_versions = {entry["openshift_version"] for entry in same}
        in_order = tuple(sorted(openshift_versions, key=precedence, reverse=True))
        image = OsImage(*key, in_order, urls[0], next(iter(digests), None))
        images.append(image)
        faults += [
            f"entries of {image.file_name} have {number} different {what}s; one image must have one {what}"
            for what, number in (("url", len(urls)), ("sha256", len(digests)))
            if number > 1
        ]
    parsers.raise_faults(faults)
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
        elif not isinstance(member, str):
            yield f"{name} must be a string, in double quotes"
        elif not is_right(member):
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

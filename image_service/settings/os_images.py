"""``OS_IMAGES``: the configured base images, parsed and merged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import attrs

from image_service.common.registry.references import URL_FORM, is_registry_url, parse_registry_url
from image_service.core.errors import FormatError
from image_service.core.families.coreos.build_names import (
    ARCHITECTURE_FAULT,
    VERSION,
    VERSION_FAULT,
    is_architecture,
    rpm_architecture,
)
from image_service.core.families.coreos.family import COREOS
from image_service.core.families.live.families import FAMILIES
from image_service.core.formats.hosts import host_fault, is_web_url
from image_service.settings import parsers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FULL_ISO = "full-iso"
_REMOTE_MEMBERS = ("remote", "digests", "digests_sha256", "verify")
METAL_DISK = "metal-disk"
ISO_TYPES = (FULL_ISO, "disconnected-iso")
TYPES = (*ISO_TYPES, METAL_DISK)

FAMILY_NAMES = (COREOS, *(family.name for family in FAMILIES))

SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_S3_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[!-~]+")
_URL_FAULT = f"must be a file:///path, {parsers.WEB_URL}"
_MORE_URLS = f', {URL_FORM}, or s3://bucket/key with "remote": true'
_REMOTE_URL_FAULT = f"of a remote image must be s3://bucket/key, {parsers.WEB_URL}"


@attrs.frozen
class OsImage:
    """A base image and its source."""

    version: str  # of the OS build
    cpu_architecture: str  # RPM architecture name
    image_type: str  # one of `TYPES`; of a disk image of a stream, its platform and ``-disk``
    openshift_versions: tuple[str, ...]  # that it is for, the highest first; never empty
    url: str = attrs.field(
        repr=False
    )  # ``file``, ``http``, ``https``, ``s3``, ``oci``; its query may hold a credential
    sha256: str | None = None  # of the file, lower-case hex; None: unknown
    # of its detached OpenPGP signature; None: the image's URL with ``.sig`` appended to the path
    signature_url: str | None = attrs.field(default=None, repr=False)
    remote: bool = False  # it stays at its origin, and is read by ranges
    digests_url: str | None = attrs.field(default=None, repr=False)  # of the list of block digests
    digests_sha256: str | None = None  # of that list, lower-case hex; None: there is none
    verify: bool = False  # it is a layer in a registry, which is read once and compared with its digest
    family: str | None = None  # of the live ISO; None: the one that recognizes it
    unknown_members: tuple[str, ...] = ()  # of its entries, which have no effect

    @property
    def file_name(self) -> str:
        """Its name in ``DATA_DIR``."""
        suffix = "iso" if self.is_iso else "img"
        return f"rhcos-{self.image_type}-{self.version}-{self.cpu_architecture}.{suffix}"

    @property
    def is_iso(self) -> bool:
        """True for a live ISO, False for a disk image, which only composes use."""
        return self.image_type in ISO_TYPES

    @property
    def signature_is_nowhere(self) -> bool:
        """True if nothing can be beside it in its registry."""
        is_unnamed = self.url.startswith("release:") or "#" not in self.url
        return is_registry_url(self.url) and not self.remote and is_unnamed

    @property
    def local_path(self) -> Path | None:
        """The path of a ``file`` URL; None for other URLs."""
        split = urlsplit(self.url)
        return Path(unquote(split.path)) if split.scheme == "file" else None


def parse_os_images(value: str) -> tuple[OsImage, ...]:
    """Return the images of a JSON list, in the order of their first entries.

    Entries of one version, architecture and type are one image. Unknown members have no effect.

    Raises:
        ValueError: one argument per fault, each naming entry and member, none repeating a URL.
    """
    same_image: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in parsers.json_entries(value, _faults):
        key = (entry["version"], rpm_architecture(entry["cpu_architecture"]), entry.get("type", FULL_ISO))
        same_image.setdefault(key, []).append(entry)
    images, faults = [], []
    for key, same in same_image.items():
        members = {name: _distinct(same, name) for name in ("url", "sha256", "family", *_REMOTE_MEMBERS)}
        first = {name: next(iter(values), None) for name, values in members.items()}
        openshift_versions = {entry["openshift_version"] for entry in same}
        in_order = tuple(sorted(openshift_versions, key=precedence, reverse=True))
        image = OsImage(
            *key,
            in_order,
            members["url"][0],
            first["sha256"],
            remote=bool(first["remote"]),
            digests_url=first["digests"],
            digests_sha256=first["digests_sha256"],
            verify=bool(first["verify"]),
            family=first["family"],
            unknown_members=tuple(sorted({name for entry in same for name in entry} - _KNOWN)),
        )
        images.append(image)
        faults += [
            f"entries of {image.file_name} have {len(values)} different {what}s;"
            f" one image must have one {what}"
            for what, values in members.items()
            if len(values) > 1
        ]
    parsers.raise_faults(faults)
    return tuple(images)


def _distinct(entries: Iterable[Mapping[str, Any]], member: str) -> list[Any]:
    """Return the different values of a member, digests in lower case; booleans are false where absent."""
    values = [entry.get(member, False if member in {"remote", "verify"} else None) for entry in entries]
    values = [value.lower() if "sha256" in member and value else value for value in values]
    return list(dict.fromkeys(value for value in values if value is not None))


def _faults(entry: object) -> Iterable[str]:
    """Return the faults of one entry."""
    if not isinstance(entry, dict):
        yield "must be an object"
        return
    yield from _member_faults(entry)
    for name in ("sha256", "digests_sha256"):
        digest = entry.get(name)
        if name in entry and not (isinstance(digest, str) and SHA256.fullmatch(digest)):
            yield f"{name} must be 64 hexadecimal digits, or absent"
    yield from _remote_faults(entry)
    if entry.get("family", COREOS) not in FAMILY_NAMES:
        yield f"family must be one of {', '.join(FAMILY_NAMES)}, or absent"
    if entry.get("type", FULL_ISO) not in TYPES:
        yield f"type must be one of {', '.join(TYPES)}, or absent"


def _member_faults(entry: Mapping[str, object]) -> Iterable[str]:
    for name, (is_right, message) in _MEMBERS.items():
        member = entry.get(name)
        if name not in entry:
            yield f"{name} is missing; it {message}"
        elif not isinstance(member, str):
            yield f"{name} must be a string, in double quotes"
        elif name == "url" and (fault := host_fault(member)):
            yield f"url {fault}"
        elif name == "url" and is_registry_url(member):
            yield from _registry_faults(member, is_remote=entry.get("remote") is True)
        elif name == "url" and entry.get("remote") is True:
            if not is_remote_url(member):
                yield f"url {_REMOTE_URL_FAULT}"
        elif not is_right(member):
            yield f"{name} {message}" + _MORE_URLS * (name == "url")


def _registry_faults(url: str, *, is_remote: bool) -> Iterable[str]:
    try:
        file = parse_registry_url(url)
    except FormatError as error:
        yield f"url {error.detail}"
        return
    if is_remote and file.is_release:
        yield 'url of a release payload must be without "remote": its images are packed'


def _remote_faults(entry: Mapping[str, object]) -> Iterable[str]:
    remote, digests = entry.get("remote", False), entry.get("digests")
    if not isinstance(remote, bool):
        yield "remote must be true or false, without quotes, or absent"
    if "digests" in entry and not (isinstance(digests, str) and (is_url(digests) or is_remote_url(digests))):
        yield f"digests {host_fault(str(digests)) or f'{_URL_FAULT}, or s3://bucket/key'}"
    if ("digests" in entry) != ("digests_sha256" in entry):
        yield "digests and digests_sha256 must be there both, or neither"
    if "digests" in entry and remote is False:
        yield 'digests need "remote": true; the digest of an image that is downloaded is sha256'
    yield from _verify_faults(entry)
    if remote is True and entry.get("type") == METAL_DISK:
        yield f"remote must be false, or absent, for type {METAL_DISK}: disk images are fetched whole"


def _verify_faults(entry: Mapping[str, object]) -> Iterable[str]:
    verify = entry.get("verify", False)
    if not isinstance(verify, bool):
        yield "verify must be true or false, without quotes, or absent"
    elif verify and not (entry.get("remote") is True and str(entry.get("url")).startswith("oci://")):
        yield 'verify needs "remote": true and an oci:// url, whose registry names the digest'
    elif verify and "digests" in entry:
        yield "verify must be absent with digests: each block is compared with them"


def is_remote_url(value: str) -> bool:
    """Return True for a URL that can be read by ranges."""
    return bool(_S3_URL.fullmatch(value)) or is_web_url(value)


def is_url(value: str) -> bool:
    """Return True for a URL that can be fetched, or a ``file`` URL that can be opened, as it stands."""
    split = urlsplit(value) if re.fullmatch(r"file:[!-~]+", value) and "#" not in value else None
    if split is None:
        return is_web_url(value)
    is_plain = split.path.startswith("/") and not split.query and "\0" not in unquote(split.path)
    return split.netloc in {"", "localhost"} and is_plain


_MEMBERS: dict[str, tuple[Callable[[str], object], str]] = {
    "openshift_version": (VERSION.fullmatch, VERSION_FAULT),
    "cpu_architecture": (is_architecture, ARCHITECTURE_FAULT),
    "url": (is_url, _URL_FAULT),
    "version": (VERSION.fullmatch, VERSION_FAULT),
}
# assisted-service has given entries a rootfs_url, which nothing needs.
_KNOWN = {*_MEMBERS, *_REMOTE_MEMBERS, "sha256", "type", "family", "rootfs_url"}


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

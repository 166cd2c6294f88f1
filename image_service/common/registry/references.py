"""References to images in OCI registries: ``oci://HOST[:PORT]/REPOSITORY[:TAG][@DIGEST][#/PATH]``.

Names are those of the distribution specification, and in the form of containers/image: a digest counts before
a tag, and no name means ``latest``. The repository has no default host.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.hosts import parse_authority

SCHEMES = ("oci", "release")
"""``release`` is an OpenShift release payload, in whose images the file is found."""
URL_FORM = "oci://host[:port]/repository[:tag or @digest], with #/path for a file in an image"
RELEASE_FORM = "release://host[:port]/repository[:tag or @digest], with #rhel-9 or #rhel-10 for a stream"

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NAME = re.compile(r"(?P<repository>[^:@]+)(?::(?P<tag>[^@]*))?(?:@(?P<digest>.*))?")
_MAX_REPOSITORY = 255  # characters with the host, as registries have it


@attrs.frozen
class ImageReference:
    """The name of an image.

    Args:
        registry: host, and the port unless it is that of HTTPS; an IPv6 address in brackets.
        tag: empty: `digest` is the name.
        digest: empty: `tag` is the name.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """The digest, or the tag."""
        return self.digest or self.tag

    def with_digest(self, digest: str) -> ImageReference:
        """Return the reference to another image in the same repository."""
        return attrs.evolve(self, tag="", digest=digest)

    def __str__(self) -> str:
        mark = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{mark}"


@attrs.frozen
class RegistryFile:
    """A file in a registry.

    Args:
        path: in the image, or the title of a layer, without a slash before it; empty: the only layer. Its
            last component may be ``*``: the only file of its directory.
        is_release: the image is a release payload, and `path` the name of a stream.
    """

    reference: ImageReference
    path: str = ""
    is_release: bool = False

    def __str__(self) -> str:
        scheme, slash = ("release", "") if self.is_release else ("oci", "/")
        return f"{scheme}://{self.reference}" + (f"#{slash}{self.path}" if self.path else "")


def is_registry_url(url: str) -> bool:
    """Return True for a URL of one of the `SCHEMES`, valid or not."""
    return url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse_reference(text: str) -> ImageReference:
    """Return the image that ``HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]`` names; FormatError if it is none."""
    host, _, name = text.partition("/")
    try:
        parse_authority(host)
    except ValueError as fault:
        raise FormatError(f"its registry {fault}") from None
    match = _NAME.fullmatch(name)
    if match is None or not _REPOSITORY.fullmatch(match["repository"]) or len(text) > _MAX_REPOSITORY + 300:
        raise FormatError("must have a repository of lower-case letters, digits, and . _ - / between them")
    tag, digest = match["tag"], match["digest"]
    if tag is not None and not _TAG.fullmatch(tag):
        raise FormatError(
            "must have a tag of at most 128 letters, digits and . _ -, beginning with no . or -"
        )
    if digest is not None and not DIGEST.fullmatch(digest):
        raise FormatError("must have a digest that is sha256: and 64, or sha512: and 128, hexadecimal digits")
    registry = host.lower().removesuffix(":443")
    if digest is not None:
        return ImageReference(registry, match["repository"], digest=digest)
    return ImageReference(registry, match["repository"], tag or "latest")


def parse_registry_url(url: str) -> RegistryFile:
    """Return the file that a URL names.

    Raises:
        FormatError: it is not valid; the message says what it must be, and does not repeat it.
    """
    try:
        split = urlsplit(url)
    except ValueError:
        raise FormatError(f"must be {URL_FORM}") from None
    if split.scheme not in SCHEMES or not re.fullmatch(r"[!-~]+", url) or "?" in url or "@" in split.netloc:
        raise FormatError(f"must be {URL_FORM}")
    reference = parse_reference(f"{split.netloc}{split.path}")
    if split.scheme == "release":
        if split.fragment and not re.fullmatch(r"[a-z]+-[0-9]{1,2}", split.fragment):
            raise FormatError(f"must be {RELEASE_FORM}")
        return RegistryFile(reference, split.fragment, is_release=True)
    return RegistryFile(reference, _parse_path(split.fragment))


def _parse_path(fragment: str) -> str:
    path = unquote(fragment, errors="replace").removeprefix("/")
    parts = path.split("/")
    if path and (
        not {"", ".", ".."}.isdisjoint(parts) or "\0" in path or any("*" in part for part in parts[:-1])
    ):
        raise FormatError(
            "must have a path in the image after #, such as #/coreos/coreos-x86_64.iso or #/disk/*"
        )
    if "*" in parts[-1] and parts[-1] != "*":
        raise FormatError("must have * as the whole name of a file, such as #/disk/*")
    return path

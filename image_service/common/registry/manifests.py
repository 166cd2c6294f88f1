"""Manifests and indexes of OCI registries, and of Docker's, as values; which layer of them has a file."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service.common.registry.references import DIGEST
from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
"""As much as registries must accept (distribution specification)."""
TITLE = "org.opencontainers.image.title"
_UNPACK = "io.deis.oras.content.unpack"

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
"""Of the config of an artifact, which has none: ``{}``."""

_MANIFESTS = (
    MANIFEST_TYPE,
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ACCEPT = ", ".join((*_INDEXES, *_MANIFESTS))
"""The field of a request for a manifest."""

_TAR = re.compile(
    r"application/vnd\.(?:oci\.image\.layer(?:\.nondistributable)?\.v1\.tar"
    r"|docker\.image\.rootfs(?:\.foreign)?\.diff\.tar)(?:[.+](?P<compression>gzip|zstd))?"
)
_NAME = re.compile(r"[A-Za-z0-9._-]{0,40}")
# The names of Go's ports, by the names of RPM's architectures.
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}


DISK_TYPE = "application/vnd.kubevirt.disk."
"""Of the layer with a disk, before its format."""
DISK_FORMATS = ("raw", "qcow2")
"""Those that KubeVirt and ironic know."""
FILE_TYPE = "application/octet-stream"


@attrs.frozen
class ImagePlatform:
    """What an image runs on, in the names of Go."""

    os: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


@attrs.frozen
class BlobDescriptor:
    """A blob or a manifest in the same repository.

    Args:
        size: bytes.
        platform: of a manifest in an index; None: it has none.
    """

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = attrs.field(factory=dict, eq=False)
    platform: ImagePlatform | None = None

    @property
    def title(self) -> str:
        """The name of the file that it is; empty: it has none."""
        return self.annotations.get(TITLE, "")

    @property
    def is_file_system(self) -> bool:
        """True for a layer of a container image, False for a file."""
        is_unpacked = self.annotations.get(_UNPACK) == "true"
        return _TAR.fullmatch(self.media_type) is not None and (is_unpacked or not self.title)


@attrs.frozen
class ImageManifest:
    """An image or an artifact.

    Args:
        layers: the lowest first.
    """

    layers: tuple[BlobDescriptor, ...]

    def find_file(self, path: str) -> BlobDescriptor | None:
        """Return the layer that is a file as it stands.

        Args:
            path: its title; empty: the only layer.

        Returns:
            None: the file is in the file system of a container image.

        Raises:
            FormatError: there is no such file.
        """
        files = [layer for layer in self.layers if not layer.is_file_system]
        if path:
            titled = [layer for layer in files if layer.title == path]
            if titled:
                return titled[0]
            if len(files) < len(self.layers):
                return None
            raise FormatError(f"the artifact has no file {path!r:.100}; it has {_titles(files)}")
        if not files and self.layers:
            raise FormatError("it is a container image; its URL must name the file in it, such as #/disk/*")
        if len(files) != 1:
            raise FormatError(
                f"the artifact has {len(files)} files; its URL must name one after #: it has {_titles(files)}"
            )
        return files[0]

    @property
    def file_systems(self) -> tuple[BlobDescriptor, ...]:
        """The layers of a container image, the uppermost first."""
        return tuple(layer for layer in reversed(self.layers) if layer.is_file_system)


@attrs.frozen
class ImageIndex:
    """One image for several platforms."""

    manifests: tuple[BlobDescriptor, ...]

    def select(self, architecture: str) -> BlobDescriptor:
        """Return the manifest for an architecture of Linux; the first one if there are several.

        Args:
            architecture: in the names of RPM.

        Raises:
            FormatError: there is none.
        """
        wanted = GO_ARCHITECTURES.get(architecture, architecture)
        # Attestations are manifests for unknown/unknown.
        known = [each for each in self.manifests if each.platform is None or each.platform.os != "unknown"]
        for each in known:
            platform = each.platform
            if platform and platform.os in {"", "linux"} and platform.architecture in {wanted, architecture}:
                return each
        if len(known) == 1 and known[0].platform is None:
            return known[0]
        there = (
            ", ".join(dict.fromkeys(str(each.platform) for each in known if each.platform)) or "no platform"
        )
        raise FormatError(f"the index has nothing for linux/{wanted}; it has {there:.300}")


ParsedManifest: TypeAlias = ImageManifest | ImageIndex


def parse_manifest(content: bytes, media_type: str = "") -> ParsedManifest:
    """Return what a manifest says.

    Args:
        media_type: that of the response; the one in the manifest counts before it.

    Raises:
        FormatError: it is not a manifest of an image.
    """
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise FormatError("the manifest is not JSON") from None
    if not isinstance(document, dict):
        raise FormatError("the manifest is not an object")
    if document.get("schemaVersion") != 2:  # noqa: PLR2004 - the only version that has media types
        raise FormatError("the manifest is not of version 2; push the image with a newer tool")
    kind = document.get("mediaType") or media_type.partition(";")[0].strip()
    # One that could be read as either could be checked as the one and used as the other.
    if "manifests" in document and "layers" in document:
        raise FormatError("the manifest is an image and an index at once")
    if kind in _INDEXES or (kind not in _MANIFESTS and "manifests" in document):
        return ImageIndex(_descriptors(document.get("manifests"), "manifests"))
    if kind in _MANIFESTS or "layers" in document:
        return ImageManifest(_descriptors(document.get("layers"), "layers"))
    raise FormatError(f"the manifest is of type {str(kind)!r:.80}, which is not an image")


def _descriptors(members: object, name: str) -> tuple[BlobDescriptor, ...]:
    if not isinstance(members, list):
        raise FormatError(f"{name} of the manifest is not a list")
    return tuple(
        _descriptor(member, f"{name}[{index}] of the manifest") for index, member in enumerate(members)
    )


def _descriptor(member: object, where: str) -> BlobDescriptor:
    if not isinstance(member, dict):
        raise FormatError(f"{where} is not an object")
    digest, size, media_type = member.get("digest"), member.get("size"), member.get("mediaType", "")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise FormatError(f"{where} has no digest of sha256 or sha512")
    if type(size) is not int or not 0 <= size < 2**63:
        raise FormatError(f"{where} has no size")
    if not isinstance(media_type, str):
        raise FormatError(f"{where} has no media type")
    annotations = member.get("annotations")
    texts = annotations if isinstance(annotations, dict) else {}
    return BlobDescriptor(
        media_type,
        digest,
        size,
        {key: value for key, value in texts.items() if isinstance(value, str)},
        _platform(member.get("platform")),
    )


def _platform(member: object) -> ImagePlatform | None:
    if not isinstance(member, dict):
        return None
    names = (str(member.get(name, "")) for name in ("os", "architecture"))
    return ImagePlatform(*(name if _NAME.fullmatch(name) else "unknown" for name in names))


def _titles(layers: list[BlobDescriptor]) -> str:
    return ", ".join(repr(layer.title) for layer in layers if layer.title)[:300] or "none with a title"


EMPTY_CONFIG = BlobDescriptor(EMPTY_TYPE, f"sha256:{hashlib.sha256(b'{}').hexdigest()}", 2)


def artifact_layer_type(file_name: str) -> tuple[str, Mapping[str, str]]:
    """Return media type and annotations of the layer with a file, by its name."""
    suffix = file_name.rpartition(".")[2]
    if suffix in DISK_FORMATS:
        return f"{DISK_TYPE}{suffix}", {TITLE: file_name, "disktype": suffix}
    return FILE_TYPE, {TITLE: file_name}


def render_artifact(artifact_type: str, layer: BlobDescriptor) -> bytes:
    """Return the manifest of an artifact with one layer, the same for the same arguments."""

    def members(blob: BlobDescriptor) -> dict[str, object]:
        return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}

    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact_type,
        "config": members(EMPTY_CONFIG),
        "layers": [{**members(layer), "annotations": dict(layer.annotations)}],
    }
    return json.dumps(document, indent=2).encode()

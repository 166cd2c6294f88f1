"""OpenShift's release payloads: which image has the live ISOs, and their names in it.

A payload is an image whose ``release-manifests/image-references`` (an ImageStream in JSON) names all images
of the release by digest. One of them, ``machine-os-images``, has ``coreos/coreos-ARCH.iso`` and
``coreos/coreos-stream.json`` of RHEL 9, and since 2026 ``coreos10-ARCH.iso`` and ``coreos10-stream.json`` of
RHEL 10; OKD 5 has the latter alone.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.registry.references import parse_reference
from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.registry.references import ImageReference

IMAGE_REFERENCES = "release-manifests/image-references"
BOOT_IMAGES = "release-manifests/0000_50_installer_coreos-bootimages.yaml"
"""The ConfigMap ``coreos-bootimages``: stream metadata of the ISOs in ``machine-os-images``."""
MACHINE_OS_IMAGES = "machine-os-images"
MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
_OLDEST = 9  # whose files have no number in their names
_GENERATIONS = (9, 10)


@attrs.frozen
class ReleaseDocuments:
    """Small files of images in memory, by their paths."""

    contents: dict[str, bytearray] = attrs.field(factory=dict)

    def write(self, path: str, size: int) -> Callable[[bytes], object]:
        """Keep a file (see `WriteFile`); FormatError if it is too large."""
        if size > MAX_DOCUMENT_BYTES:
            raise FormatError(f"{path} has {size} bytes, more than {MAX_DOCUMENT_BYTES}")
        content = self.contents[path] = bytearray()
        return content.extend


@attrs.frozen
class StreamFiles:
    """The files of one stream and architecture in ``machine-os-images``."""

    iso: str
    metadata: str

    @classmethod
    def of(cls, generation: int, architecture: str) -> StreamFiles:
        """Return the files of a generation of RHEL."""
        prefix = "coreos/coreos" + ("" if generation == _OLDEST else str(generation))
        return cls(f"{prefix}-{architecture}.iso", f"{prefix}-stream.json")


def candidates(stream: str, architecture: str) -> tuple[StreamFiles, ...]:
    """Return where the ISO of a stream may be, the preferred place first.

    Args:
        stream: such as ``rhel-9`` or ``centos-10``; empty: the oldest that the payload has.
    """
    generations = (int(stream.rpartition("-")[2]),) if stream else _GENERATIONS
    return tuple(StreamFiles.of(each, architecture) for each in generations)


def find_machine_os_images(content: bytes) -> ImageReference:
    """Return the image with the live ISOs.

    Args:
        content: of `IMAGE_REFERENCES`.

    Raises:
        FormatError: the payload has none, or does not name it by digest.
    """
    document: Any
    try:
        document = json.loads(content)
        tags = document["spec"]["tags"]
        names = {tag["name"]: tag["from"]["name"] for tag in tags}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(f"{IMAGE_REFERENCES} of the payload is not an ImageStream") from None
    name = names.get(MACHINE_OS_IMAGES)
    if not isinstance(name, str):
        raise FormatError(f"the payload has no image {MACHINE_OS_IMAGES}")
    reference = parse_reference(name)
    if not reference.digest:
        raise FormatError(f"the payload does not name {MACHINE_OS_IMAGES} by its digest")
    return reference


def iso_sha256(metadata: bytes, architecture: str) -> str | None:
    """Return the digest of the live ISO that stream metadata has; None: it has none."""
    found: Any
    try:
        found = json.loads(metadata)
        for name in ("architectures", architecture, "artifacts", "metal", "formats", "iso", "disk", "sha256"):
            found = found[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found.lower() if isinstance(found, str) and re.fullmatch("[0-9A-Fa-f]{64}", found) else None

"""Stream metadata of a mirror: the releases served here, in the format of ``stream_metadata``. Pure.

What the mirror does not serve is passed on as it was published: images of clouds, and artifacts of other
platforms and formats with their original locations.

Files have the URLs ``BASE/streams/STREAM/RELEASE/ARCH/FILE NAME``: coreos-installer saves them under the last
segment. It rejects a document in which an artifact has no ``signature``, and verifies the content of that
URL; so the URL is always present, and serves the original signature or 404. An artifact that is passed on and
has none gets its location with ``.sig`` appended to the path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import indent
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from image_service.core.families.coreos.stream_metadata import original_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

SIGNATURE_SUFFIX = ".sig"
_GENERATOR = "image-service"
_YAML_INDENT = "    "  # of a block below a key of ``data``
# Of github.com/openshift/installer, hack/build-coreos-manifest.go
_CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: coreos-bootimages
  namespace: openshift-machine-config-operator
  annotations:
    include.release.openshift.io/ibm-cloud-managed: "true"
    include.release.openshift.io/self-managed-high-availability: "true"
    include.release.openshift.io/single-node-developer: "true"
data:
  releaseVersion: {release}
  stream: |
{stream}
  streams: |
{streams}
"""


@attrs.frozen
class PublishedFile:
    """A file that the mirror serves: the last segment of its URL, and its SHA-256 in lower-case hex."""

    name: str
    sha256: str


@attrs.frozen
class PublishedRelease:
    """The files of one release for one architecture."""

    architecture: str  # RPM architecture name
    version: str  # of the OS build
    published: datetime  # date of the original metadata, UTC
    iso: PublishedFile
    pxe: Mapping[str, PublishedFile]  # by the names in the metadata: ``kernel``, ``initramfs``, ``rootfs``
    # what the stream says about the architecture
    original: Mapping[str, object] = attrs.field(factory=dict, eq=False, repr=False)
    disks: Mapping[tuple[str, str], PublishedFile] = attrs.field(factory=dict)  # by platform and format


@attrs.frozen
class PublishedStream:
    """A stream in a ConfigMap.

    Args:
        stream: its name here.
        key: its name in the ConfigMap.
        releases: at least one, each for another architecture.
    """

    stream: str
    key: str
    releases: Sequence[PublishedRelease]


def render_stream(stream: str, base_url: str, releases: Iterable[PublishedRelease]) -> bytes:
    """Render stream metadata as JSON, the same for equal arguments.

    Args:
        base_url: of this service, without a slash at its end.
        releases: at least one, each for another architecture.
    """
    return f"{json.dumps(_document(stream, base_url, tuple(releases)), indent=2)}\n".encode("ascii")


def render_config_map(
    base_url: str, streams: Sequence[PublishedStream], openshift_version: str | None = None
) -> bytes:
    """Render the ConfigMap ``coreos-bootimages``, in which OpenShift keeps stream metadata, as YAML.

    Args:
        base_url: of this service, without a slash at its end.
        streams: the default one is the first.
        openshift_version: its ``releaseVersion``; None: the newest of the default stream's releases.
    """
    documents = {each.key: _document(each.stream, base_url, tuple(each.releases)) for each in streams}
    default = streams[0]
    newest = max(default.releases, key=lambda release: release.published)
    text = _CONFIG_MAP.format(
        release=json.dumps(openshift_version or newest.version),
        stream=indent(json.dumps(documents[default.key], indent=2), _YAML_INDENT),
        streams=indent(json.dumps(documents, indent=2), _YAML_INDENT),
    )
    return text.encode("ascii")


def _document(stream: str, base_url: str, releases: tuple[PublishedRelease, ...]) -> Mapping[str, object]:
    newest = max(release.published for release in releases)
    return {
        "stream": stream,
        "metadata": {"last-modified": newest.isoformat().replace("+00:00", "Z"), "generator": _GENERATOR},
        "architectures": {
            release.architecture: _architecture(stream, base_url, release)
            for release in sorted(releases, key=lambda release: release.architecture)
        },
    }


def _architecture(stream: str, base_url: str, release: PublishedRelease) -> Mapping[str, object]:
    artifacts: dict[str, dict[str, Any]] = {"metal": {"release": release.version, "formats": {}}}
    for file in original_files(release.original):
        formats = artifacts.setdefault(file.platform, {"release": file.release, "formats": {}})["formats"]
        signature = file.artifact.signature or _signature_url(file.artifact.location)
        formats.setdefault(file.format, {})[file.part] = {**file.members, "signature": signature}
    for platform, image_format, part, served in (
        ("metal", "iso", "disk", release.iso),
        *(("metal", "pxe", name, file) for name, file in release.pxe.items()),
        *((*disk, "disk", file) for disk, file in release.disks.items()),
    ):
        url = f"{base_url}/streams/{stream}/{release.version}/{release.architecture}/{served.name}"
        formats = artifacts[platform]["formats"]
        before = formats.setdefault(image_format, {}).get(part, {})
        known = {name: before[name] for name in ("uncompressed-sha256",) if name in before}
        ours = {"location": url, "signature": url + SIGNATURE_SUFFIX, "sha256": served.sha256}
        formats[image_format][part] = {**ours, **known}
    images = {name: value for name, value in release.original.items() if isinstance(value, Mapping)}
    return {**images, "artifacts": artifacts}


def _signature_url(location: str) -> str:
    split = urlsplit(location)
    return split._replace(path=split.path + SIGNATURE_SUFFIX).geturl()

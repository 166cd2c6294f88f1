"""Stream metadata of a mirror: the releases served here, in the format of ``stream_metadata``. Pure.

Files have the URLs ``BASE/streams/STREAM/RELEASE/ARCH/FILE NAME``: coreos-installer saves them under the last
segment. It rejects a document in which an artifact has no ``signature``, and verifies the content of that
URL; so the URL is always present, and serves the original signature or 404.
"""

from __future__ import annotations

import json
from textwrap import indent
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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


def render_stream(stream: str, base_url: str, releases: Iterable[PublishedRelease]) -> bytes:
    """Render stream metadata as JSON, the same for equal arguments.

    Args:
        base_url: of this service, without a slash at its end.
        releases: at least one, each for another architecture.
    """
    return f"{json.dumps(_document(stream, base_url, tuple(releases)), indent=2)}\n".encode("ascii")


def render_config_map(stream: str, base_url: str, releases: Iterable[PublishedRelease]) -> bytes:
    """Render the ConfigMap ``coreos-bootimages``, in which OpenShift keeps stream metadata, as YAML.

    Its ``releaseVersion`` is the newest of the releases, for no version of OpenShift is known here.
    """
    releases = tuple(releases)
    document = _document(stream, base_url, releases)
    newest = max(releases, key=lambda release: release.published)
    text = _CONFIG_MAP.format(
        release=json.dumps(newest.version),
        stream=indent(json.dumps(document, indent=2), _YAML_INDENT),
        streams=indent(json.dumps({stream: document}, indent=2), _YAML_INDENT),
    )
    return text.encode("ascii")


def _document(stream: str, base_url: str, releases: tuple[PublishedRelease, ...]) -> Mapping[str, object]:
    newest = max(release.published for release in releases)
    return {
        "stream": stream,
        "metadata": {"last-modified": newest.isoformat().replace("+00:00", "Z"), "generator": _GENERATOR},
        "architectures": {
            release.architecture: {"artifacts": {"metal": _metal(stream, base_url, release)}}
            for release in sorted(releases, key=lambda release: release.architecture)
        },
    }


def _metal(stream: str, base_url: str, release: PublishedRelease) -> Mapping[str, object]:
    def artifact(file: PublishedFile) -> Mapping[str, str]:
        url = f"{base_url}/streams/{stream}/{release.version}/{release.architecture}/{file.name}"
        return {"location": url, "signature": url + SIGNATURE_SUFFIX, "sha256": file.sha256}

    formats = {"iso": {"disk": artifact(release.iso)}}
    if release.pxe:
        formats["pxe"] = {name: artifact(file) for name, file in release.pxe.items()}
    return {"release": release.version, "formats": formats}

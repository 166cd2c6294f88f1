"""Stream metadata of a mirror: what is held here, as a stream publishes it (see ``stream_metadata``). Pure.

Everything lies at ``BASE/streams/STREAM/RELEASE/ARCH/FILE NAME``: coreos-installer saves under the last
segment. It refuses a document in which one artifact has no ``signature``, and verifies what that URL serves;
so the URL is always there, and serves the original signature or 404.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

SIGNATURE_SUFFIX = ".sig"
_GENERATOR = "image-service"
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
    """A file that is served.

    Args:
        name: last segment of its URL.
        sha256: lower-case hex.
    """

    name: str
    sha256: str


@attrs.frozen
class PublishedRelease:
    """What is held of one release for one architecture.

    Args:
        architecture: RPM architecture name.
        version: of the OS build.
        published: date of the metadata that told of it, UTC.
        iso: the live ISO.
        pxe: files of it by their names in the metadata: ``kernel``, ``initramfs``, ``rootfs``.
    """

    architecture: str
    version: str
    published: datetime
    iso: PublishedFile
    pxe: Mapping[str, PublishedFile]


def render_stream(stream: str, base_url: str, releases: Iterable[PublishedRelease]) -> bytes:
    """Write stream metadata.

    Args:
        stream: its name.
        base_url: of this service, without a slash at its end.
        releases: at least one, and one for each architecture.

    Returns:
        JSON; the same for equal arguments.
    """
    return f"{_json(_document(stream, base_url, tuple(releases)))}\n".encode("ascii")


def render_config_map(stream: str, base_url: str, releases: Iterable[PublishedRelease]) -> bytes:
    """Write it as OpenShift keeps it in a cluster.

    Args:
        stream: as of ``render_stream``.
        base_url: likewise.
        releases: likewise.

    Returns:
        YAML of the ConfigMap ``coreos-bootimages``; its ``releaseVersion`` is the newest of the releases, for
        no version of OpenShift is known here.
    """
    held = tuple(releases)
    document = _document(stream, base_url, held)
    newest = max(held, key=lambda release: release.published)
    text = _CONFIG_MAP.format(
        release=json.dumps(newest.version),
        stream=_indented(_json(document)),
        streams=_indented(_json({stream: document})),
    )
    return text.encode("ascii")


def file_path(stream: str, version: str, architecture: str, name: str) -> str:
    """Give the path of a file below the base URL."""
    return f"/streams/{stream}/{version}/{architecture}/{name}"


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
        url = base_url + file_path(stream, release.version, release.architecture, file.name)
        return {"location": url, "signature": url + SIGNATURE_SUFFIX, "sha256": file.sha256}

    formats = {"iso": {"disk": artifact(release.iso)}}
    if release.pxe:
        formats["pxe"] = {name: artifact(file) for name, file in release.pxe.items()}
    return {"release": release.version, "formats": formats}


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


def _indented(text: str) -> str:
    """As a block of YAML that stands below a key of ``data``."""
    return "\n".join(f"    {line}" for line in text.splitlines())

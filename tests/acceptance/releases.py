"""Releases of a CoreOS stream at an origin."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import attrs

from tests.core.families.coreos.streams import metal, stream, text
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.formats.reading import fixture as live_iso
from tests.core.formats.reading import read_layout
from tests.server.catalog.origin import Origin, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_BYTES = 1024 * 1024  # coreos-installer fails on what is shorter
PARTS = {"kernel": "vmlinuz", "initramfs": "initrd.img", "rootfs": "rootfs.img"}


@attrs.frozen
class Release:
    """A release of the origin: an ISO and its files, each by its name at the origin."""

    version: str
    iso: bytes
    parts: Mapping[str, bytes]

    @classmethod
    def make(cls, version: str) -> Release:
        parts = {name: hashlib.shake_256((name + version).encode()).digest(LEAST_BYTES) for name in PARTS}
        files = {f"images/pxeboot/{PARTS[name]}": content for name, content in parts.items()}
        return cls(version, build_live_iso({**live_files(), **files}), parts)

    @classmethod
    def complete(cls, version: str) -> Release:
        """Make one from which nothing has to be derived, for an OpenShift version below 4.18."""
        iso = bytearray(live_iso("embed-areas-2022-02.iso"))
        rootfs = read_layout(bytes(iso)).files.rootfs
        assert rootfs
        iso[rootfs.offset : rootfs.offset + len(version)] = version.encode()
        return attrs.evolve(cls.make(version), iso=bytes(iso))

    def publish(self, origin: Origin, signature: bytes | None) -> dict[str, Any]:
        """Serve the release at the origin; return its stream metadata. Only the kernel has a signature."""
        told = metal(self.version, "x86_64", origin.url(""))
        artifacts = {"iso": told["formats"]["iso"]["disk"], **told["formats"]["pxe"]}
        for name, content in {"iso": self.iso, **self.parts}.items():
            artifacts[name]["sha256"] = hashlib.sha256(content).hexdigest()
            serve(origin, artifacts[name]["location"], content)
            if name != "kernel":
                del artifacts[name]["signature"]
        if signature:
            serve(origin, artifacts["kernel"]["signature"], signature)
        return told


def serve(origin: Origin, url: str, content: bytes, etag: str = '"1"') -> None:
    origin.replies[url.removeprefix(origin.url(""))] = [Reply(content, headers={"ETag": etag})]


def tell(origin: Origin, release: Release, signature: bytes | None = None) -> None:
    """Make the stream offer a release."""
    document = stream(release.version)
    document["architectures"]["x86_64"]["artifacts"]["metal"] = release.publish(origin, signature)
    serve(origin, origin.url("/streams/stable.json"), text(document), f'"{release.version}"')

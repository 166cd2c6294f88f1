"""usage: python .ci/chart.py CHART DIRECTORY: package a Helm chart, for a web server and for a registry.

DIRECTORY gets NAME-VERSION.tgz and index.yaml, which `helm repo add` reads, and NAME-VERSION.oci.tar, an OCI
layout, which `helm install oci://` pulls once it is in a registry. The bytes depend on the chart and
SOURCE_DATE_EPOCH only; helm is not needed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def main(chart: Path, directory: Path) -> None:
    """Write the three files."""
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    name = f"{described['name']}-{described['version']}"
    files = {
        f"{described['name']}/{path.relative_to(chart)}": path.read_bytes()
        for path in chart.rglob("*")
        if path.is_file()
    }
    archive = gzip.compress(_tar(files, time), mtime=0)
    (directory / f"{name}.tgz").write_bytes(archive)
    (directory / "index.yaml").write_text(_render_index(described, f"{name}.tgz", archive, time))
    (directory / f"{name}.oci.tar").write_bytes(_tar(_lay_out(described, archive), time))


def _tar(files: Mapping[str, bytes], time: int) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), time, 0o644
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _render_index(described: Mapping[str, Any], name: str, archive: bytes, time: int) -> str:
    created = datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")
    entry = {**described, "urls": [name], "created": created, "digest": hashlib.sha256(archive).hexdigest()}
    index = {"apiVersion": "v1", "generated": created, "entries": {described["name"]: [entry]}}
    return yaml.safe_dump(index, sort_keys=True)


def _lay_out(described: Mapping[str, Any], archive: bytes) -> dict[str, bytes]:
    """Return the files of an OCI layout with the chart, whose tag is the version."""
    blobs: dict[str, bytes] = {}

    def add(media_type: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": add(_CONFIG, _json(described)),
        "layers": [add(_CONTENT, archive)],
    }
    tagged = add(_MANIFEST, _json(manifest)) | {
        "annotations": {"org.opencontainers.image.ref.name": described["version"]}
    }
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [tagged]}
    return {**blobs, "index.json": _json(index), "oci-layout": _json({"imageLayoutVersion": "1.0.0"})}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

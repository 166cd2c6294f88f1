"""Stream metadata: real documents beside the checkout, and a small one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

FIXTURES = Path(__file__).resolve().parents[5] / "shared" / "fixtures" / "streams"
SHA256 = "0123456789abcdef" * 4


@cache
def fixture(name: str) -> bytes:
    """Return real stream metadata, or its schema; skips the test if it is absent."""
    path = FIXTURES / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path.read_bytes()


def stream(
    release: str = "44.1.2.3", *architectures: str, origin: str = "https://origin.example"
) -> dict[str, Any]:
    """Return valid metadata; for x86_64 alone if no architecture is named."""
    return {
        "stream": "stable",
        "metadata": {"last-modified": "2026-07-21T14:07:12Z"},
        "architectures": {
            architecture: {"artifacts": {"metal": metal(release, architecture, origin)}}
            for architecture in architectures or ("x86_64",)
        },
    }


def metal(release: str, architecture: str, origin: str = "https://origin.example") -> dict[str, Any]:
    """Return the members about bare metal."""
    base = f"{origin}/{release}/{architecture}/fcos-{release}-live"

    def artifact(name: str) -> dict[str, str]:
        return {"location": base + name, "signature": f"{base}{name}.sig", "sha256": SHA256}

    pxe = {
        "kernel": artifact(f"-kernel.{architecture}"),
        "initramfs": artifact(f"-initramfs.{architecture}.img"),
        "rootfs": artifact(f"-rootfs.{architecture}.img"),
    }
    formats = {"iso": {"disk": artifact(f"-iso.{architecture}.iso")}, "pxe": pxe}
    return {"release": release, "formats": formats}


def text(document: object) -> bytes:
    """Return the document as published."""
    return json.dumps(document).encode()


def config_map(streams: dict[str, Any], default: object = None, *, as_yaml: bool = False) -> bytes:
    """Return the ConfigMap ``coreos-bootimages``.

    Args:
        default: the default stream, or its name.
    """
    data = {"releaseVersion": "4.22.0"}
    if default is not None:
        data["stream"] = json.dumps(streams[default] if isinstance(default, str) else default, indent=2)
    if streams:
        data["streams"] = json.dumps(streams, indent=2)
    metadata = {"name": "coreos-bootimages", "namespace": "openshift-machine-config-operator"}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    return (yaml.safe_dump(document) if as_yaml else json.dumps(document)).encode()

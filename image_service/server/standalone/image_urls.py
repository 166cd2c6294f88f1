"""The URLs of an infra-env's images, by what each is."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from image_service.server.standalone.infra_env import StandaloneInfraEnv

_IPXE_ARCHITECTURES = {"x86_64", "aarch64"}


def image_urls(base_url: str, infra_env: StandaloneInfraEnv) -> dict[str, str]:
    """Return the URLs of all images that a CoreOS base image allows; those of other families have fewer.

    Args:
        base_url: of images, without a final slash.
        infra_env: the infra-env.
    """
    version, architecture = infra_env.openshift_version, infra_env.cpu_architecture
    isos = f"{base_url}/byid/{infra_env.id}/{version}/{architecture}"
    files = f"{base_url}/boot-artifacts/{version}/{architecture}"
    query = urlencode({"version": version, "arch": architecture})
    urls = {
        "iso": f"{isos}/full.iso",
        "iso_sha256": f"{isos}/full.iso.sha256",
        "minimal_iso": f"{isos}/minimal.iso",
        "minimal_iso_sha256": f"{isos}/minimal.iso.sha256",
        "ipxe_script": f"{base_url}/images/{infra_env.id}/ipxe?{query}",
        "kernel": f"{files}/vmlinuz",
        "initrd": f"{base_url}/images/{infra_env.id}/pxe-initrd?{query}",
        "rootfs": f"{files}/rootfs.img",
    }
    if architecture not in _IPXE_ARCHITECTURES:
        del urls["ipxe_script"]
    return urls

"""The URLs of an infra-env's images, by what each is."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.families.live.family import LiveFamily
    from image_service.server.standalone.infra_env import StandaloneInfraEnv

_IPXE_ARCHITECTURES = {"x86_64", "aarch64"}


def image_urls(
    base_url: str, infra_env: StandaloneInfraEnv, family: LiveFamily | None = None
) -> dict[str, str]:
    """Return the URLs of all images that the family of the base image allows.

    Args:
        base_url: of images, without a final slash.
        infra_env: the infra-env.
        family: of its base image; None: CoreOS, or it is not known.
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
    return urls if family is None else _urls_of(family, urls, isos)


def _urls_of(family: LiveFamily, urls: Mapping[str, str], isos: str) -> dict[str, str]:
    """Return those of the URLs of CoreOS that a family has too, and that of its config ISO."""
    netboot = family.netboot
    absent = {"minimal_iso", "minimal_iso_sha256"}
    if isinstance(netboot, str):
        absent |= {"ipxe_script", "kernel", "initrd", "rootfs"}
    elif not netboot.fetches_rootfs:
        absent.add("rootfs")
    own = {} if family.medium is None else {"config_iso": f"{isos}/config.iso"}
    return {name: url for name, url in urls.items() if name not in absent} | own

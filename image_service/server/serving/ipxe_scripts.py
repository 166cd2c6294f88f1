"""iPXE scripts of infra-envs: their URLs, with the caller's own credentials or the caller's short link."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import attrs

from image_service.core.errors import NotFound
from image_service.core.formats.hosts import is_authority
from image_service.core.images.ipxe import (
    check_architecture,
    netboot_arguments,
    netboot_of,
    render_ipxe_script,
)
from image_service.core.images.reference import Credentials, CredentialScheme, ImageRef, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.reference import Reader
    from image_service.server.snapshots.image_finder import ImageFinder

_PARAMETERS = {CredentialScheme.API_KEY: "api_key", CredentialScheme.IMAGE_TOKEN: "image_token"}
"""Of credentials that a URL can hold; iPXE sends no ``Authorization``."""


@attrs.frozen
class IpxeScripts:
    """Makes the scripts of one listener.

    Args:
        get_base_url: returns the URL by which clients reach the service, without a slash at its end.
        uses_host: that URL names another listener: the scheme is http, and the host is the one by which the
            client has reached it.
        serves_isos: the listener has the ISOs of infra-envs.
    """

    _images: ImageFinder
    _get_base_url: Callable[[], str]
    _base_path: str
    _uses_host: bool
    _serves_isos: bool = True

    async def render(
        self, reader: Reader, headers: Mapping[str, str], request_id: str, link_code: str = ""
    ) -> bytes:
        """Return the script of an infra-env.

        Args:
            reader: whose reference is complete.
            headers: of the request, by lower-case name.
            request_id: names the request in log lines.
            link_code: of the short link that was requested; empty: none was.

        Raises:
            NotFound: iPXE does not boot the architecture.
            ImageServiceError: the infra-env's kernel arguments are not available, or not valid.
        """
        ref = reader.ref
        if not isinstance(ref, ImageRef) or ref.version is None or ref.architecture is None:
            raise NotFound("an iPXE script needs a version and an architecture")
        check_architecture(ref.architecture)
        base, customization = await self._images.get_customization(reader, request_id)
        base_url = self._reached_by(headers)
        version, architecture = quote(ref.version, safe=""), quote(ref.architecture, safe="")
        artifacts = f"{base_url}/boot-artifacts/{version}/{architecture}"
        config = b""
        if (netboot := netboot_of(base)) is not None:
            if netboot.fetches_iso:
                self._check_iso(base, link_code)
            if netboot.config_arguments is not None:
                initrd_ref = attrs.evolve(ref, kind=Kind.PXE_INITRD)
                of_initrd = attrs.evolve(reader, ref=initrd_ref)
                _, with_config = await self._images.get_customization(of_initrd, request_id)
                config = with_config.ignition
        arguments = netboot_arguments(
            base,
            f"{artifacts}/rootfs.img",
            customization.kernel_arguments,
            iso_url=f"{base_url}/byid/{ref.infra_env_id}/{version}/{architecture}/full.iso",
            config=config,
        )
        if link_code:
            link = f"{base_url}/s/{link_code}"
            return render_ipxe_script(f"{link}.vmlinuz", f"{link}.img", arguments)
        initrd = f"{base_url}/images/{ref.infra_env_id}/pxe-initrd?version={version}&arch={architecture}"
        initrd += _render_credentials(reader.credentials)
        return render_ipxe_script(f"{artifacts}/vmlinuz", initrd, arguments)

    def _check_iso(self, base: BaseImage, link_code: str) -> None:
        """Refuse a script whose kernel could not fetch the ISO."""
        fetches = f"{base.name} is of {base.family_name}, whose initrd fetches the whole ISO"
        if not self._serves_isos:
            raise NotFound(f"{fetches}; this listener serves none: set HTTP_SERVES_IMAGES")
        if link_code:  # its URL would be in /proc/cmdline, without an end
            raise NotFound(f"{fetches}: no short link stands for its iPXE script")

    def _reached_by(self, headers: Mapping[str, str]) -> str:
        host = headers.get("host", "")
        if self._uses_host and is_authority(host):
            return f"http://{host}{self._base_path}"
        return self._get_base_url()


def _render_credentials(credentials: Credentials | None) -> str:
    if credentials is None or credentials.scheme not in _PARAMETERS:
        return ""
    return f"&{_PARAMETERS[credentials.scheme]}={quote(credentials.secret, safe='')}"

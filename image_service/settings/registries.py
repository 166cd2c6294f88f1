"""Settings of OCI registries: credentials, authorities, mirrors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.credentials import parse_auth_file
from image_service.common.registry.mirrors import parse_registries_conf
from image_service.core.formats.hosts import parse_authority
from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from pathlib import Path


def _auth_file(value: str) -> Path:
    path = parsers.readable_file(value)
    parse_auth_file(parsers.file_content(str(path.absolute())))
    return path


def _registries_conf(value: str) -> Path:
    path = parsers.readable_file(value)
    parse_registries_conf(parsers.file_content(str(path.absolute())))
    return path


def _registry_name(value: str) -> str:
    parse_authority(value)
    return value.lower()


@attrs.frozen(kw_only=True)
class RegistrySettings:
    """OCI registries."""

    auth_files: tuple[Path, ...] = setting(
        "REGISTRY_AUTH_FILE", parse=parsers.separated(_auth_file), absent=()
    )
    """Files with the credentials of registries, separated by commas: `auth.json` as podman and skopeo write
    it, Docker's `config.json`, or a pull secret. The longest prefix of an image's name counts; of two files
    that have it, the first. Helper programs (`credsStore`) are not run. Re-read when they change. When not
    set: registries are asked without credentials."""
    registries_conf: Path | None = setting("CONTAINERS_REGISTRIES_CONF", parse=_registries_conf)
    """File of the mirrors of registries, in version 2 of the format `registries.conf`, as OpenShift writes it
    to `/etc/containers/registries.conf` on its nodes, or YAML of `ImageDigestMirrorSet`, `ImageTagMirrorSet`
    and `ImageContentSourcePolicy`, as `oc mirror` writes it. Re-read when it changes. When not set: images
    are fetched from where their names say."""
    certs_dirs: tuple[Path, ...] = setting(
        "REGISTRY_CERTS_DIR", parse=parsers.separated(parsers.directory), absent=()
    )
    """Directories, separated by commas, that have a directory `HOST[:PORT]` for registries whose certificate
    is by an authority of their own: authorities in `*.crt`, and the certificate and key to show them in
    `NAME.cert` and `NAME.key`. `/etc/containers/certs.d` is one. The authorities of
    `OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE` are trusted for all registries."""
    insecure: tuple[str, ...] = setting(
        "INSECURE_REGISTRIES", parse=parsers.separated(_registry_name), absent=()
    )
    """Registries, as `host[:port]` separated by commas, whose certificates are not verified, and which may
    speak plain HTTP. Images that are named by digest are verified nevertheless; those named by tag are not.
    `INSECURE_SKIP_VERIFY` is not for registries."""


NO_REGISTRIES = RegistrySettings()

"""Sentences about settings that are valid, but that an operator may not have meant."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from image_service.common.files.certificates import describe_end, read_not_after
from image_service.common.files.exposure import describe_exposure
from image_service.common.registry.references import is_registry_url
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.settings.base_images import CatalogSettings
    from image_service.settings.settings import Settings


def find_warnings(settings: Settings, base_url: str, *, standalone: bool) -> Iterator[str]:
    """Yield the warnings of a start; the certificate is read, the rest is known from the settings.

    Args:
        settings: valid.
        base_url: by which clients reach the service.
        standalone: True if the embedded stand-in takes assisted-service's place.
    """
    listens_beyond_loopback = settings.listen.address is None or not settings.listen.address.is_loopback
    # Without the stand-in, clients may reach a proxy on this machine.
    if _is_loopback(base_url) and (listens_beyond_loopback or not standalone):
        yield (
            f"clients elsewhere cannot reach {base_url}: minimal ISOs, PXE and mirror URLs will not work; set"
            " IMAGE_SERVICE_BASE_URL"
        )
    if standalone and listens_beyond_loopback:
        yield "standalone mode serves all images without credentials to everybody who reaches LISTEN_PORT"
    if settings.admin.is_public and not settings.tls.is_enabled:
        yield "ADMIN_LISTEN is beyond loopback without HTTPS_CERT_FILE: its token is sent in clear"
    if settings.tls.min_version in {"VersionTLS10", "VersionTLS11"}:
        yield (
            f"TLS_MIN_VERSION is {settings.tls.min_version}, and OpenSSL speaks TLS 1.2 and later at its"
            " security level: older clients are refused"
        )
    if missing := settings.tls.policy.missing:
        yield f"OpenSSL does not offer these of TLS_CIPHER_SUITES here: {', '.join(missing)}"
    if settings.upstream.insecure and not standalone:
        yield (
            "ASSISTED_SERVICE_INSECURE_SKIP_VERIFY is set: anyone on the network can impersonate"
            " assisted-service, which gets tokens and sends Ignition configs"
        )
    if settings.download.insecure:
        yield "INSECURE_SKIP_VERIFY is set: anyone on the network can replace a download of a base image"
    if settings.registries.insecure:
        yield (
            f"INSECURE_REGISTRIES is set: anyone on the network can impersonate"
            f" {', '.join(settings.registries.insecure)}, and replace what a tag names there"
        )
    yield from _image_warnings(settings.catalog, has_streams=bool(settings.streams.sources))
    try:
        yield from _file_warnings(settings)
    except (ConfigurationError, OSError) as error:  # a file was replaced after the settings were read
        yield str(error)
    yield from _missing_programs(settings)


def _image_warnings(catalog: CatalogSettings, *, has_streams: bool) -> Iterator[str]:
    if catalog.images and not (catalog.isos or has_streams):
        yield "OS_IMAGES has disk images only, which only the jobs role uses: this service has none to serve"
    for image in catalog.images:
        if image.unknown_members:
            names = ", ".join(image.unknown_members)
            yield f"OS_IMAGES: unknown members of {image.file_name} have no effect: {names}"
        if image.remote and image.sha256 and not (image.digests_sha256 or is_registry_url(image.url)):
            yield f"OS_IMAGES: sha256 of {image.file_name} is not verified: it is remote, and has no digests"


def _is_loopback(url: str) -> bool:
    """Return True if the host of a URL is this machine for every client."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")  # RFC 6761 section 6.3
    return address.is_loopback or address.is_unspecified


def _file_warnings(settings: Settings) -> Iterator[str]:
    certificate = settings.tls.certificate_file
    if certificate and (end := describe_end(certificate, read_not_after(certificate), datetime.now(UTC))):
        yield end
    files = (settings.tls.key_file, settings.admin.token_file, settings.database.secret_file)
    for secret in (*files, settings.signing.key_file, *settings.registries.auth_files):
        if secret:
            yield from describe_exposure(secret)


def _missing_programs(settings: Settings) -> Iterator[str]:
    """Return a sentence for each program that is not in PATH: the loss without it."""
    effects = {
        "xorriso": "base images without a recipe of their minimal ISO, or that need nmstatectl, are degraded"
    }
    if settings.catalog.signing_keys is not None:
        effects["gpgv"] = "no base image is served whose signature was not verified before"
    for program, effect in effects.items():
        if not shutil.which(program):
            yield f"{program} is not installed; install the package {program}: without it {effect}"

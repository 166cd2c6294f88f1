"""Settings of base images: where they are stored, which there are, and how they are downloaded."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.references import is_registry_url
from image_service.settings import parsers
from image_service.settings.os_images import OsImage, parse_os_images
from image_service.settings.stream_sources import StreamSource, parse_coreos_streams
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@attrs.frozen(kw_only=True)
class StorageSettings:
    """Storage."""

    data_dir: Path = setting("DATA_DIR", parse=parsers.writable_directory, default="/data")
    """The only directory that is written: downloaded base images, digests, the databases. A base image that
    is there already, as `rhcos-{type}-{version}-{cpu_architecture}.iso`, is not downloaded. Files with
    secrets in it have mode 0600: at start, others that are found lose the permissions of group and others,
    which is logged. The directory may be a symbolic link; a link in it is never followed for writing."""
    max_bytes: int | None = setting("DATA_DIR_MAX_BYTES", parse=parsers.whole_number(1))
    """Maximum size of all files in `DATA_DIR` but stored snapshots, in bytes. When not set: the free space of
    the file system, less some MiB. The file system needs room for both: base images and
    `SNAPSHOT_STORE_BYTES`."""
    retention_seconds: float = setting("RETENTION", parse=parsers.seconds, default="86400")
    """Seconds for which a downloaded or derived image stays in `DATA_DIR` when it is no longer configured.
    Files that were put there by hand are never removed."""
    scratch_dir: Path | None = setting("DATA_TEMP_DIR", parse=parsers.writable_directory)
    """Directory for temporary files of some MiB, when a minimal ISO is derived. When not set: `DATA_DIR`."""


@attrs.frozen(kw_only=True)
class CatalogSettings:
    """Base images."""

    images: tuple[OsImage, ...] = setting(
        "OS_IMAGES",
        "RHCOS_VERSIONS",
        parse=parse_os_images,
        absent=(),
        required=True,
        is_secret=True,
        from_file=True,
    )
    """The base images: a JSON list of objects. `openshift_version`, `version` (the OS build),
    `cpu_architecture` and `url` (`file:///…`, served in place; `http://…` or `https://…`, downloaded once,
    or `oci://…`, a file in a registry, see `docs/registries.md`) are required, `type` is `full-iso` (the
    default), `disconnected-iso` or `metal-disk` (a raw disk image for bare metal, as it is or compressed by
    xz, gzip or zstd, for composes only), `sha256` is the digest of the file, if known, `family` names the
    family of an ISO that is not CoreOS's, if it is not recognized: see `docs/families.md`. With `"remote":
    true` the image stays at its `url` (`http://…`, `https://…`, `s3://bucket/key`, or `oci://…` of an
    artifact) and is read by ranges; `digests` is then the URL of a list of its block digests, if there is
    one, and `digests_sha256` the digest of that list; `"verify": true` has a layer of a registry read as a
    whole, once: see `docs/remote.md`. Versions are made of letters,
    digits and `. _ -`, the first a letter or digit. An architecture is one of `x86_64`, `aarch64`, `ppc64le`,
    `s390x` and `riscv64`; `amd64` and `arm64` are other names of the first two.
    Entries of one version, architecture and type are one image and must have one URL. Several images may have
    one OpenShift version, such as those of RHEL 9 and 10: each is found by its `version`, and the OpenShift
    version alone means the first of them. Required, except with `COREOS_STREAMS` and in standalone mode,
    which uses a small sample image instead."""
    ready_when: str = setting("READY_WHEN", parse=parsers.one_of("all", "any"), default="all")
    """When `/health` begins to return 200: once `all` base images are ready or their first attempts have
    failed, and at least one can be served; or once `any` is ready."""
    signing_keys: Path | None = setting("SIGNING_KEYS", parse=parsers.key_ring)
    """OpenPGP key ring, binary or ASCII-armored. With it, a base image is served only if it has a detached
    signature by one of the keys: at its URL with `.sig` appended to the path, or beside its file. `gpgv`
    verifies it. A remote base image needs `digests`, and that list is what must be signed. When not set:
    signatures are not verified."""

    @property
    def source_urls(self) -> tuple[str, ...]:
        """The URLs of the base images, and of their digest lists."""
        digests = (image.digests_url for image in self.images if image.digests_url)
        return (*(image.url for image in self.images), *digests)

    @property
    def isos(self) -> tuple[OsImage, ...]:
        """The images that are live ISOs."""
        return tuple(image for image in self.images if image.is_iso)

    @property
    def disks(self) -> tuple[OsImage, ...]:
        """The images that are disks, for composes."""
        return tuple(image for image in self.images if not image.is_iso)

    def contradictions(self, _environ: Mapping[str, str]) -> Iterator[str]:
        """Variables that are valid, but not together."""
        unnamed = [image.file_name for image in self.images if image.signature_is_nowhere]
        if self.signing_keys and unnamed:
            yield (
                f"SIGNING_KEYS: the URLs of {', '.join(unnamed)} of OS_IMAGES must name a file then"
                " (oci://…#/path), beside which its image has the signature, with .sig appended to the path"
            )
        unsigned = [image.file_name for image in self.images if image.remote and not image.digests_url]
        if self.signing_keys and unsigned:
            yield (
                f"SIGNING_KEYS: the remote images {', '.join(unsigned)} of OS_IMAGES need digests then, with"
                " a signature at their URL with .sig appended to the path"
            )


@attrs.frozen(kw_only=True)
class StreamSettings:
    """CoreOS streams."""

    sources: tuple[StreamSource, ...] = setting(
        "COREOS_STREAMS", parse=parse_coreos_streams, absent=(), is_secret=True, from_file=True
    )
    """Streams to take base images from, with or without `OS_IMAGES`: a JSON list of objects. `stream` (its
    name here), `url` (`http://…`, `https://…` or `file:///…`, of its metadata or of a ConfigMap such as
    OpenShift's `coreos-bootimages`, in JSON or YAML; or `release://…`, of a release payload, which has both
    the ConfigMap and the ISOs) and `architectures` (a list) are required. `keep` is the
    number of releases to keep that became ready (2 by default), beside one that is not ready yet.
    `config_map_stream` is the stream's name in the ConfigMap, if it is not `stream`. `openshift_version` is
    the version that the releases are for; alone, it means the default stream of its ConfigMap. `mirror` is a
    list of further artifacts that the mirror shall serve, such as `metal/raw.xz`. The metal ISO
    of each architecture becomes a base image whose version is the release; in the place of an OpenShift
    version, the stream's name is the newest release that is ready. See `docs/streams.md`."""
    refresh_seconds: float = setting("STREAM_REFRESH", parse=parsers.seconds, default="3600")
    """Interval at which a stream's metadata is fetched, in seconds, with 10 % jitter."""

    def contradictions_with(self, catalog: CatalogSettings) -> Iterator[str]:
        """Variables that are valid, but not together."""
        unsigned = [source.stream for source in self.sources if is_registry_url(source.url)]
        if catalog.signing_keys and unsigned:
            yield (
                f"SIGNING_KEYS: {', '.join(unsigned)} of COREOS_STREAMS come from release payloads, which"
                " have no OpenPGP signatures"
            )


@attrs.frozen(kw_only=True)
class DownloadSettings:
    """Downloads of base images."""

    ca_file: Path | None = setting("OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE", parse=parsers.ca_file)
    """PEM file of certificate authorities to trust for downloads, beside those of the system. Re-read for
    each new connection."""
    headers: Mapping[str, str] = setting(
        "OS_IMAGES_REQUEST_HEADERS", parse=parsers.field_map, absent=MappingProxyType({}), is_secret=True
    )
    """JSON object of header fields to send when a base image is downloaded; they are not sent to another
    origin, to which a redirect may lead."""
    query_params: Mapping[str, str] = setting(
        "OS_IMAGES_REQUEST_QUERY_PARAMS",
        parse=parsers.string_map,
        absent=MappingProxyType({}),
        is_secret=True,
    )
    """JSON object of query parameters to add when a base image is downloaded; they are not sent to another
    origin."""
    stall_seconds: float = setting("DOWNLOAD_STALL_TIMEOUT", parse=parsers.seconds, default="60")
    """Seconds after which a download that makes less than a KiB of progress per second is aborted, to be
    resumed later."""
    concurrency: int = setting("DOWNLOAD_CONCURRENCY", parse=parsers.whole_number(1, 64), default="2")
    """Base images that are downloaded at a time."""
    retry_min_seconds: float = setting("DOWNLOAD_RETRY_MIN", parse=parsers.seconds, default="1")
    """Initial retry delay in seconds; exponential back-off with up to 50 % jitter, and not before the
    `Retry-After` of the source."""
    retry_max_seconds: float = setting("DOWNLOAD_RETRY_MAX", parse=parsers.seconds, default="300")
    """Maximum retry delay in seconds, unless the source asks for more; at least `DOWNLOAD_RETRY_MIN`."""
    insecure: bool = setting("INSECURE_SKIP_VERIFY", parse=parsers.flag, default="false")
    """`true`: do not verify the certificates of the origins of base images and streams. Anybody between them
    and this service can then replace an image whose digest or signature is not known otherwise. It does not
    apply to assisted-service: see `ASSISTED_SERVICE_INSECURE_SKIP_VERIFY`. For trials only."""

    def contradictions(self, _environ: Mapping[str, str]) -> Iterator[str]:
        """Variables that are valid, but not together."""
        if (shortest := self.retry_min_seconds) > (longest := self.retry_max_seconds):
            yield f"DOWNLOAD_RETRY_MIN={shortest:g}: DOWNLOAD_RETRY_MAX={longest:g} is less than that"

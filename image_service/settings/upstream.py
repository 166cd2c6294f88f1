"""Settings of assisted-service, of the snapshots of its answers, and of its embedded stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.settings import parsers
from image_service.settings.parsers import Address, ListenAddress
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from pathlib import Path

MAX_IGNITION_BYTES = 64 * 1024 * 1024


@attrs.frozen(kw_only=True)
class UpstreamSettings:
    """assisted-service."""

    scheme: str = setting("ASSISTED_SERVICE_SCHEME", parse=parsers.one_of("http", "https"), default="http")
    """Scheme of assisted-service's URL: `http` or `https`."""
    host: Address | None = setting("ASSISTED_SERVICE_HOST", parse=parsers.address, required=True)
    """`host[:port]` of assisted-service; an IPv6 address in brackets, or bare without a port. Required,
    except in standalone mode: with `--standalone` the service does not start if it is set."""
    ca_file: Path | None = setting(
        "ASSISTED_SERVICE_API_TRUSTED_CA_FILE", "HTTPS_CA_FILE", parse=parsers.ca_file
    )
    """PEM file of certificate authorities to trust for assisted-service, beside those of the system. Re-read
    for each new connection."""
    timeout_seconds: float = setting("UPSTREAM_TIMEOUT", parse=parsers.seconds, default="30")
    """Timeout of a whole call to assisted-service, in seconds, from when it is sent."""
    concurrency: int = setting("UPSTREAM_CONCURRENCY", parse=parsers.whole_number(1), default="32")
    """Calls to assisted-service at a time, divided equally among `WORKERS`, at least one each. Of those
    of a process, a quarter is reserved for revalidations of known images, and a quarter of the others for new
    images of credentials that assisted-service has accepted (of 32: 8 and 6). All share the rest (18). While
    several wait, requests without credentials get as many of these as those with new ones, and each client
    address as many as another of its kind. A call that has waited until 1.5 s after its request is refused
    with 503. An image takes two or three calls. If each takes 0.5 s, the 6 slots reserved for accepted
    credentials serve at least 4 new images a second, also during a flood without credentials."""
    ignition_bytes: int = setting(
        "IGNITION_MAX_BYTES", parse=parsers.whole_number(262144, MAX_IGNITION_BYTES), default="67108864"
    )
    """Largest Ignition config, in bytes, from 256 KiB to 64 MiB. One that does not fit its area in the ISO is
    put behind the end of the ISO; such an image takes as much of `SNAPSHOT_CACHE_BYTES` as its config has."""
    insecure: bool = setting("ASSISTED_SERVICE_INSECURE_SKIP_VERIFY", parse=parsers.flag, default="false")
    """`true`: do not verify the certificate of assisted-service. Anybody between it and this service can then
    read tokens and replace Ignition configs. For trials only."""

    @property
    def url(self) -> str:
        """Scheme, host and port; without a host in standalone mode."""
        return f"{self.scheme}://{self.host.netloc if self.host else ''}"


@attrs.frozen(kw_only=True)
class SnapshotSettings:
    """Snapshots and mounts."""

    ttl_seconds: float = setting("SNAPSHOT_TTL", parse=parsers.seconds, default="60")
    """Seconds for which an answer of assisted-service is valid before it is fetched again."""
    grace_seconds: float = setting("SNAPSHOT_GRACE", parse=parsers.seconds, default="600")
    """Seconds for which the known images are served while assisted-service fails, from the start of the first
    call that failed."""
    max_age_seconds: float = setting("SNAPSHOT_MAX_AGE", parse=parsers.seconds, default="3600")
    """Seconds after which an answer of assisted-service is not served to new clients, even if nothing has
    changed: tokens in it expire."""
    cache_bytes: int = setting("SNAPSHOT_CACHE_BYTES", parse=parsers.whole_number(0), default="268435456")
    """Memory for composed images (their overlays, not their base images), divided equally among `WORKERS`. An
    evicted image is composed again, to the same bytes."""
    store_bytes: int = setting(
        "SNAPSHOT_STORE_BYTES", parse=parsers.whole_number(1024**2), default="1073741824"
    )
    """Disk space for stored snapshots and mounts, beside that of `DATA_DIR_MAX_BYTES`, in bytes: database,
    its WAL and their index together, which may exceed it by a tenth and 8 MiB for a moment. At the limit,
    the service removes snapshots that no client is reading, the least recently used first, then the others,
    the least recently read first. Each process goes on serving a removed snapshot from memory until it
    restarts. A snapshot takes about 10 KiB, one with a large Ignition config about 100 KiB: 1 GiB holds
    10,000 of the latter."""
    mount_window_seconds: float = setting("MOUNT_WINDOW", parse=parsers.seconds, default="60")
    """Seconds after its last range for which a client keeps the version of the image that it is reading,
    whatever has changed since."""
    mount_stall_seconds: float = setting("MOUNT_STALL_SECONDS", parse=parsers.seconds, default="60")
    """Seconds without a read after which a mount is logged, and `/api/v1/mounts` of `ADMIN_LISTEN` shows it
    as stalled if the boot still needs the image, else as quiet."""


@attrs.frozen(kw_only=True)
class StandaloneSettings:
    """Standalone mode."""

    listen: ListenAddress = setting(
        "STANDALONE_LISTEN",
        parse=parsers.listen,
        default="127.0.0.1:8090",
        absent=ListenAddress("127.0.0.1", 0),
    )
    """IP address and port of the API of standalone mode."""
    token: str | None = setting("STANDALONE_TOKEN", parse=parsers.bearer_token, is_secret=True)
    """Bearer token that the API of standalone mode requires. Without one it listens on loopback only."""

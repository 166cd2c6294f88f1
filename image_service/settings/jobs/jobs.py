"""Settings of the APIs of the jobs role, of their listeners, and of jobs."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.references import parse_registry_url
from image_service.core.errors import FormatError
from image_service.core.families.coreos.build_names import VERSION
from image_service.core.formats.disk.model import MAX_DISK_BYTES, SECTOR_BYTES
from image_service.settings import parsers
from image_service.settings.parsers import ListenAddress
from image_service.settings.upstream import MAX_IGNITION_BYTES
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

APIS = ("composer", "worker", "ec2", "registry")
"""The last one only if it is named."""
DATA_DIR = "{DATA_DIR}"
"""Stands for that directory in paths."""

_S3_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9._~/-]*)?")
_MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un has 108, with the zero at the end


@attrs.frozen
class UnixAddress:
    """The path of a Unix socket to listen on."""

    path: Path


JobsAddress: TypeAlias = UnixAddress | ListenAddress


def _parse_apis(value: str) -> frozenset[str]:
    names = [name.strip() for name in value.split(",")]
    parsers.raise_faults(f"{name!r} must be one of {', '.join(APIS)}" for name in names if name not in APIS)
    return frozenset(names)


def _parse_address(value: str) -> JobsAddress:
    path = value.removeprefix("unix:")
    return parsers.listen(value) if path == value else UnixAddress(_parse_path(path))


def _parse_path(value: str) -> Path:
    if not value.startswith(("/", DATA_DIR)):
        raise ValueError("must have an absolute path after unix:")
    return Path(value)


def _parse_store(value: str) -> str:
    if not (value.startswith(("/", DATA_DIR)) or _S3_URL.fullmatch(value)):
        raise ValueError("must be an absolute path, or s3://BUCKET/PREFIX")
    return value


def _parse_s3_url(value: str) -> str:
    if not _S3_URL.fullmatch(value):
        raise ValueError("must be s3://BUCKET/PREFIX, the prefix of letters, digits and . _ ~ - /")
    return value


def _parse_registry(value: str) -> str:
    try:
        file = parse_registry_url(value)
    except FormatError as error:
        raise ValueError(error.detail) from None
    reference = file.reference
    if value != f"oci://{reference.registry}/{reference.repository}":
        raise ValueError("must be oci://HOST/REPOSITORY without a tag")
    return value


def _parse_aliases(value: str) -> Mapping[str, str]:
    aliases, faults = {}, []
    for entry in map(str.strip, value.split(",")):
        alias, _, target = entry.partition("=")
        if not (VERSION.fullmatch(alias) and VERSION.fullmatch(target)):
            faults.append(f"{entry!r} must be NAME=VERSION or NAME=STREAM, such as debian-12=4.16")
        elif alias in aliases:
            faults.append(f"{alias!r} is repeated")
        aliases[alias] = target
    parsers.raise_faults(faults)
    return MappingProxyType(aliases)


@attrs.frozen(kw_only=True)
class JobsSettings:
    """Jobs: APIs, listeners, limits."""

    apis: frozenset[str] = setting(
        "JOBS_APIS", parse=_parse_apis, absent=frozenset(), default=",".join(APIS[:-1])
    )
    """The APIs that this process serves, separated by commas: `composer`, `worker`, `ec2`, which is served
    if there is an `EC2_CREDENTIALS_FILE`, and `registry`, an OCI registry of finished composes. Without
    `worker`, the process only queues and lists composes; without `composer`, it only hands out queued
    jobs."""
    listen: tuple[JobsAddress, ...] = setting(
        "JOBS_LISTEN",
        parse=parsers.separated(_parse_address),
        absent=(),
        default=f"unix:{DATA_DIR}/jobs.sock,127.0.0.1:8091",
    )
    """The addresses of the APIs, separated by commas: `unix:PATH`, and IP addresses with a port. `{DATA_DIR}`
    in a path stands for that directory. A socket is for its owner and group; its clients belong to the
    default tenant. Beyond loopback, clients are authenticated by JWT, those of EC2's API by their signatures,
    and use HTTPS with the certificate of `HTTPS_CERT_FILE`; on loopback they use HTTP."""
    plain_http: bool = setting("JOBS_PLAIN_HTTP", parse=parsers.flag, default="false")
    """`true`: HTTP beyond loopback too, because a proxy in front ends TLS. Tokens and Ignition configs then
    are not encrypted between the proxy and this service."""
    store_url: str = setting("STORE_URL", parse=_parse_store, absent="", default=f"{DATA_DIR}/store")
    """The store of artifacts: an absolute path, or `s3://BUCKET/PREFIX` for replicas on several machines.
    Endpoint, region and credentials of S3 are those of the AWS variables."""
    store_reserve_bytes: int = setting(
        "STORE_RESERVE_BYTES", parse=parsers.whole_number(0), default="268435456"
    )
    """Bytes that artifacts leave free in the file system of a directory, for rows and the engine; the default
    is 256 MiB. A job whose artifact needs them fails with 507."""
    upload_s3_url: str | None = setting("UPLOAD_S3_URL", parse=_parse_s3_url)
    """`s3://BUCKET/PREFIX` for upload targets `aws.s3`. Workers need AWS credentials for it. When not set:
    such a target is refused."""
    upload_registry: str | None = setting("UPLOAD_REGISTRY", parse=_parse_registry)
    """`oci://HOST/REPOSITORY` for upload targets `oci` and `container`: images go to repositories below it,
    each with the id of its compose as the tag. Workers need credentials for it (`REGISTRY_AUTH_FILE`). When
    not set: such a target is refused."""
    distribution_aliases: Mapping[str, str] = setting(
        "DISTRIBUTION_ALIASES", parse=_parse_aliases, absent=MappingProxyType({})
    )
    """Further names of distributions, separated by commas: `NAME=VERSION` or `NAME=STREAM`, such as
    `debian-12=4.16`. `composer-cli` requests `ID-VERSION_ID` of its own machine's `os-release`."""
    byte_server_url: str | None = setting("IMAGE_SERVICE_BASE_URL", parse=parsers.base_url)
    """URL of a byte server with the same base images. Composed minimal ISOs fetch their root file system from
    it, unless they are of a stream, which has a URL for that. When not set: the kernel arguments of a request
    must have `coreos.live.rootfs_url=URL` then."""
    heartbeat_seconds: float = setting("JOBS_HEARTBEAT_TIMEOUT", parse=parsers.seconds, default="120")
    """Seconds without a heartbeat after which a job goes to another worker, twice at most. Workers send three
    in that time. After a longer outage of this service, the attempt is lost."""
    poll_seconds: float = setting("JOBS_POLL_TIMEOUT", parse=parsers.seconds, default="20")
    """Seconds for which a worker's request for a job waits for one. The timeout of a proxy must be longer."""
    job_seconds: float = setting("JOBS_JOB_TIMEOUT", parse=parsers.seconds, default="10800")
    """Seconds that one attempt of a job may take."""
    max_queued: int = setting("JOBS_MAX_QUEUED", parse=parsers.whole_number(1), default="1000")
    """Composes of one tenant that have not ended; more are refused with 429."""
    max_composes: int = setting("JOBS_MAX_COMPOSES", parse=parsers.whole_number(1), default="10000")
    """Composes, imports and exports of one tenant that are kept, ended ones too, until they are deleted or
    `JOBS_RETENTION` ends; more are refused with 507."""
    max_bytes: int = setting("JOBS_MAX_BYTES", parse=parsers.whole_number(1), default="549755813888")
    """Bytes of one tenant: its rows, artifacts and images, and the most that its composes, imports and
    exports that have not ended can take; more are refused with 507. A compose can take, for each file that
    its jobs make (one to three), the size of its disk, a 64th of it and 64 MiB; at its end, it gives back
    what it did not need. The default is 512 GiB: ten disks of 16 GiB with three files each take 490 GiB."""
    max_disk_bytes: int = setting(
        "JOBS_MAX_DISK_SIZE", parse=parsers.whole_number(SECTOR_BYTES, MAX_DISK_BYTES), default="107374182400"
    )
    """The largest `size` of a disk that a compose may ask for, in bytes; the default is 100 GiB."""
    max_request_bytes: int = setting(
        "JOBS_MAX_REQUEST_BYTES", parse=parsers.whole_number(4096), default="65536"
    )
    """Bytes of a request for a compose without its Ignition config, its URL and its kernel arguments; larger
    ones are refused with 413. The request is kept with the compose."""
    max_ignition_bytes: int = setting(
        "JOBS_MAX_IGNITION_BYTES", parse=parsers.whole_number(262144, MAX_IGNITION_BYTES), default="8388608"
    )
    """Bytes of the Ignition config of a compose, from 256 KiB to 64 MiB; larger ones are refused with 413.
    Requests with large configs are carried out one at a time, and one needs memory of seven times its
    config; the default is 8 MiB."""
    max_running: int = setting("JOBS_MAX_RUNNING", parse=parsers.whole_number(1), default="100")
    """Jobs of one tenant that run at a time; more wait."""
    min_upload_rate: int = setting("JOBS_MIN_UPLOAD_RATE", parse=parsers.whole_number(0), default="65536")
    """Bytes per second below which an upload of a worker may be aborted while uploads of a tenant with fewer
    of them wait; `0`: none is. The worker then sends the file again. The rate is that of the latest 4
    seconds."""
    retention_seconds: int = setting("JOBS_RETENTION", parse=parsers.whole_number(1), default="1209600")
    """Seconds after which a finished compose and its artifacts are deleted; the default is 14 days."""
    worker_slots: int | None = setting("JOBS_WORKER_SLOTS", parse=parsers.whole_number(0, 64))
    """Jobs at a time of the worker that this process starts; `0`: it starts none. With `1`, the jobs of all
    tenants wait for one another. When not set: 2, but 0 with `TEMPORAL_ADDRESS`, without the worker API, or
    without a Unix socket in `JOBS_LISTEN`."""
    worker_scratch_bytes: int | None = setting("JOBS_WORKER_SCRATCH_BYTES", parse=parsers.whole_number(1))
    """Bytes that all jobs of that worker may write in its scratch, in `worker/scratch` of `DATA_DIR`; a job
    waits until the others leave it enough room. When not set: the bytes that are free there at the start."""
    worker_nice: int = setting("JOBS_WORKER_NICE", parse=parsers.whole_number(0, 19), default="0")
    """The nice value of that worker and its programs: the higher, the less CPU time they have beside this
    process and its engine, and the less of a disk whose I/O scheduler knows priorities."""
    require_isolation: bool = setting("JOBS_REQUIRE_ISOLATION", parse=parsers.flag, default="false")
    """`true`: this process does not start if it would start a worker, and neither `bwrap` nor `unshare` works
    here to isolate the worker's programs ([worker.md](worker.md#isolation))."""

    @property
    def socket_path(self) -> Path | None:
        """The first Unix socket; None: there is none."""
        return next((each.path for each in self.listen if isinstance(each, UnixAddress)), None)

    @property
    def public_addresses(self) -> tuple[ListenAddress, ...]:
        """The addresses that other machines can reach."""
        return tuple(each for each in self.listen if isinstance(each, ListenAddress) and not each.is_loopback)

    def in_directory(self, data_dir: Path) -> JobsSettings:
        """Return them with the directory in the place of its placeholder.

        Raises:
            ValueError: the path of a socket is too long.
        """

        def replace(text: str) -> str:
            return text.replace(DATA_DIR, str(data_dir.absolute()))

        listen = [
            UnixAddress(Path(replace(str(each.path)))) if isinstance(each, UnixAddress) else each
            for each in self.listen
        ]
        parsers.raise_faults(
            f"JOBS_LISTEN: the path of a socket has at most {_MAX_SOCKET_PATH_BYTES} bytes: {each.path}"
            for each in listen
            if isinstance(each, UnixAddress) and len(bytes(each.path)) > _MAX_SOCKET_PATH_BYTES
        )
        return attrs.evolve(self, listen=tuple(listen), store_url=replace(self.store_url))

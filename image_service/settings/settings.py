"""The configuration: each environment variable is declared once, with its default, parser and meaning.

``Settings.from_environment`` reads them and reports all faults at once; ``python -m
image_service.settings.settings`` prints ``docs/configuration.md``.
"""

from __future__ import annotations

import re
import resource
import ssl
import sys
import textwrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from image_service.errors import ConfigurationError
from image_service.settings import parsers
from image_service.settings.os_images import OsImage, parse_os_images
from image_service.settings.parsers import Address, Listen
from image_service.settings.stream_sources import StreamSource, parse_coreos_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from ipaddress import IPv4Network, IPv6Network
    from pathlib import Path

# Descriptors that are not connections: base images, calls to assisted-service, logs, the database.
_RESERVED_DESCRIPTORS = 256


@attrs.frozen
class Variable:
    """One environment variable.

    Args:
        names: of those that are set and not empty, the first counts.
        parse: text to value; raises ``ValueError`` with one argument per fault.
        meaning: Markdown.
        default: parsed when none is set; None: the value is then ``absent``.
        absent: the value without text.
        required: must be set, except in standalone mode.
    """

    names: tuple[str, ...]
    parse: Callable[[str], object]
    meaning: str
    default: str | None = None
    absent: object = None
    required: bool = False

    def find(self, environ: Mapping[str, str]) -> tuple[str, str] | None:
        """Give the name that is set, and its text."""
        return next(((name, environ[name]) for name in self.names if environ.get(name)), None)

    def read(self, environ: Mapping[str, str], faults: list[str], *, secret: bool) -> object:
        """Give the value; if the text is wrong, add the faults, which do not repeat a secret."""
        name, text = self.find(environ) or (self.names[0], self.default)
        if text is None:
            return self.absent
        try:
            return self.parse(text)
        except ValueError as error:
            found = "" if secret else f"={_without_user(text)!r}"
            faults += [f"{name}{found}: {fault}" for fault in error.args]
            return self.absent


def _without_user(text: str) -> str:
    """Leave out what may be a user name and password in front of a host."""
    return re.sub(r"(?s).*@", "…@", text)


def _variable(*names: str, **declaration: Any) -> dict[object, Variable]:  # noqa: ANN401 - Variable's own
    return {Variable: Variable(names, **declaration)}


def _most_connections() -> int | None:
    """Count what the hard limit of open files leaves to connections; None: it has no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else max(1, hard - _RESERVED_DESCRIPTORS)


@attrs.frozen(kw_only=True)
class Settings:
    """What the environment says; the meaning of each is in its declaration.

    Durations are seconds, sizes are bytes.
    """

    assisted_service_scheme: str = attrs.field(
        metadata=_variable(
            "ASSISTED_SERVICE_SCHEME",
            parse=parsers.one_of({"http": "http", "https": "https"}),
            default="http",
            meaning="How assisted-service is asked: `http` or `https`.",
        ),
    )
    assisted_service_host: Address | None = attrs.field(
        metadata=_variable(
            "ASSISTED_SERVICE_HOST",
            parse=parsers.address,
            required=True,
            meaning="`host[:port]` of assisted-service; an IPv6 address stands in brackets, or bare without a"
            " port. Required, except in standalone mode, which does not use it.",
        ),
    )
    assisted_service_ca_file: Path | None = attrs.field(
        metadata=_variable(
            "ASSISTED_SERVICE_API_TRUSTED_CA_FILE",
            "HTTPS_CA_FILE",
            parse=parsers.ca_file,
            meaning="PEM file of certificate authorities that assisted-service is trusted by, beside those of"
            " the system. What it holds when a connection is made counts.",
        ),
    )
    upstream_timeout: float = attrs.field(
        metadata=_variable(
            "UPSTREAM_TIMEOUT",
            parse=parsers.seconds,
            default="30",
            meaning="Seconds that one call to assisted-service may take as a whole.",
        ),
    )
    snapshot_ttl: float = attrs.field(
        metadata=_variable(
            "SNAPSHOT_TTL",
            parse=parsers.seconds,
            default="60",
            meaning="Seconds for which an answer of assisted-service is good, before it is asked again.",
        ),
    )
    snapshot_grace: float = attrs.field(
        metadata=_variable(
            "SNAPSHOT_GRACE",
            parse=parsers.seconds,
            default="600",
            meaning="Seconds for which images are served as they were while assisted-service cannot be asked,"
            " from its first failure on.",
        ),
    )
    snapshot_max_age: float = attrs.field(
        metadata=_variable(
            "SNAPSHOT_MAX_AGE",
            parse=parsers.seconds,
            default="3600",
            meaning="Seconds after which an answer of assisted-service is not given to new readers, even if "
            "nothing has changed: tokens in it expire.",
        ),
    )
    snapshot_cache_bytes: int = attrs.field(
        metadata=_variable(
            "SNAPSHOT_CACHE_BYTES",
            parse=parsers.whole_number(0, None),
            default="268435456",
            meaning="Memory for what is laid over base images, an equal part of it in each of `WORKERS`. What"
            " gives way is made again, to the same bytes.",
        ),
    )
    mount_window: float = attrs.field(
        metadata=_variable(
            "MOUNT_WINDOW",
            parse=parsers.seconds,
            default="60",
            meaning="Seconds after its last range for which a client goes on with the very image that it is "
            "reading, whatever has changed since.",
        ),
    )
    upstream_concurrency: int = attrs.field(
        metadata=_variable(
            "UPSTREAM_CONCURRENCY",
            parse=parsers.whole_number(1, None),
            default="32",
            meaning="Calls to assisted-service at a time; each of `WORKERS` makes an equal part of them, and"
            " one at the least.",
        ),
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = attrs.field(
        metadata=_variable(
            "TRUSTED_PROXIES",
            parse=parsers.networks,
            absent=(),
            meaning="Networks of proxies whose `X-Forwarded-For` tells a client's address: addresses or CIDR "
            "blocks, separated by commas. When not set: the other side of a connection is the client.",
        ),
    )
    listen_port: int = attrs.field(
        metadata=_variable(
            "LISTEN_PORT",
            parse=parsers.port,
            default="8080",
            meaning="Port for images: HTTPS if a key and a certificate are given, else HTTP. 0: any that is "
            "free.",
        ),
    )
    http_listen_port: int | None = attrs.field(
        metadata=_variable(
            "HTTP_LISTEN_PORT",
            parse=parsers.port,
            meaning="Port for plain HTTP beside `LISTEN_PORT`, for clients that cannot trust its certificate:"
            " `pxe-initrd`, `boot-artifacts` and probes; ISOs only with `HTTP_SERVES_IMAGES`. When not set:"
            " there is no such port.",
        ),
    )
    http_serves_images: bool = attrs.field(
        metadata=_variable(
            "HTTP_SERVES_IMAGES",
            parse=parsers.flag,
            default="false",
            meaning="`true`: `HTTP_LISTEN_PORT` serves ISOs too. Credentials in their URLs, and the Ignition "
            "config in them, then travel in clear.",
        ),
    )
    https_key_file: Path | None = attrs.field(
        metadata=_variable(
            "HTTPS_KEY_FILE",
            parse=parsers.readable_file,
            meaning="PEM file of the private key, without passphrase. Given together with `HTTPS_CERT_FILE`, "
            "or not. Once the two files have changed, new connections are shown the new certificate, without "
            "a restart; as long as they are no pair, the one before.",
        ),
    )
    https_cert_file: Path | None = attrs.field(
        metadata=_variable(
            "HTTPS_CERT_FILE",
            parse=parsers.readable_file,
            meaning="PEM file of the certificate and of those that it is signed by.",
        ),
    )
    image_service_base_url: str | None = attrs.field(
        metadata=_variable(
            "IMAGE_SERVICE_BASE_URL",
            parse=parsers.base_url,
            meaning="The URL that clients reach this service by. Everything is served below its path too. "
            "When not set: `localhost`, `LISTEN_PORT`.",
        ),
    )
    allowed_domains: tuple[str, ...] = attrs.field(
        metadata=_variable(
            "ALLOWED_DOMAINS",
            parse=parsers.origins,
            absent=(),
            meaning="Origins whose pages may read what is served (CORS), separated by commas. When not set: "
            "none.",
        ),
    )
    workers: int = attrs.field(
        metadata=_variable(
            "WORKERS",
            parse=parsers.whole_number(1, 64),
            default="1",
            meaning="Processes that serve together, on the same ports and in the same `DATA_DIR`: as many as"
            " there are processors for them, and at most 64. What is limited here is limited for all of them"
            " together. With more than 1, another process supervises them, and replaces one that has died, or"
            " has done nothing for half a minute.",
        ),
    )
    max_connections: int = attrs.field(
        metadata=_variable(
            "MAX_CONNECTIONS",
            parse=parsers.whole_number(1, _most_connections()),
            absent=min(8192, _most_connections() or 8192),
            meaning="Connections at a time; beyond it only `/health` and `/live` are answered. At most the "
            f"hard limit of open files (`ulimit -Hn`) less {_RESERVED_DESCRIPTORS}, which are kept for"
            " other things; a larger number is refused. When not set: 8192, or that limit where it is"
            " lower.",
        ),
    )
    max_concurrent_requests: int = attrs.field(
        metadata=_variable(
            "MAX_CONCURRENT_REQUESTS",
            parse=parsers.whole_number(1),
            default="400",
            meaning="Downloads of more than 1 MiB at a time. As many again wait, in each of `WORKERS`, for 2 "
            "seconds, then they are refused with `Retry-After`. Smaller answers, such as the ranges of a "
            "mounted image, are not counted.",
        ),
    )
    handshake_timeout: float = attrs.field(
        metadata=_variable(
            "HANDSHAKE_TIMEOUT",
            parse=parsers.seconds,
            default="15",
            meaning="Seconds that a TLS handshake may take.",
        ),
    )
    head_timeout: float = attrs.field(
        metadata=_variable(
            "HEAD_TIMEOUT",
            parse=parsers.seconds,
            default="5",
            meaning="Seconds that the head of a request may take: of the first one from the accept, of the "
            "others from their first byte.",
        ),
    )
    idle_timeout: float = attrs.field(
        metadata=_variable(
            "IDLE_TIMEOUT",
            parse=parsers.seconds,
            default="60",
            meaning="Seconds that a connection stays open between two requests.",
        ),
    )
    stall_timeout: float = attrs.field(
        metadata=_variable(
            "STALL_TIMEOUT",
            parse=parsers.seconds,
            default="120",
            meaning="Seconds without any progress after which an answer that nobody reads is aborted.",
        ),
    )
    drain_delay: float = attrs.field(
        metadata=_variable(
            "DRAIN_DELAY",
            parse=parsers.delay,
            default="5",
            meaning="Seconds between SIGTERM and the end of listening, for whoever balances load: `/health` "
            "says 503, and clients are still served. SIGINT comes from a person at a terminal, who need not "
            "wait for that. A second signal ends everything at once.",
        ),
    )
    drain_timeout: float = attrs.field(
        metadata=_variable(
            "DRAIN_TIMEOUT",
            parse=parsers.delay,
            default="20",
            meaning="Seconds that answers under way may then go on, before they are cut. Both together must "
            "fit what the platform gives: 30 in Kubernetes, unless `terminationGracePeriodSeconds` says "
            "otherwise, 10 with `podman stop`.",
        ),
    )
    data_dir: Path = attrs.field(
        metadata=_variable(
            "DATA_DIR",
            parse=parsers.writable_directory,
            default="/data",
            meaning="The only directory that is written: base images that were fetched, digests, the database"
            " of standalone mode. A base image that is there already, as "
            "`rhcos-{type}-{version}-{cpu_architecture}.iso`, is not fetched.",
        ),
    )
    data_dir_max_bytes: int | None = attrs.field(
        metadata=_variable(
            "DATA_DIR_MAX_BYTES",
            parse=parsers.whole_number(1, None),
            meaning="Bytes that the files in `DATA_DIR` may take together. When not set: as many as there is "
            "room for, less some MiB.",
        ),
    )
    retention: float = attrs.field(
        metadata=_variable(
            "RETENTION",
            parse=parsers.seconds,
            default="86400",
            meaning="Seconds for which an image that was fetched or derived stays in `DATA_DIR` when no "
            "configuration has it any more. What was put there by hand is never removed.",
        ),
    )
    data_temp_dir: Path | None = attrs.field(
        metadata=_variable(
            "DATA_TEMP_DIR",
            parse=parsers.writable_directory,
            meaning="A directory for scratch files of some MiB, when a minimal ISO is derived. When not set: "
            "`DATA_DIR`.",
        ),
    )
    os_images: tuple[OsImage, ...] = attrs.field(
        repr=False,
        metadata=_variable(
            "OS_IMAGES",
            "RHCOS_VERSIONS",
            parse=parse_os_images,
            absent=(),
            required=True,
            meaning="The base images: a JSON list of objects of strings. `openshift_version`, `version` (the "
            "OS build), `cpu_architecture` and `url` (`file:///…`, served in place; `http://…` or "
            "`https://…`, fetched once) are required, `type` is `full-iso` (the default) or "
            "`disconnected-iso`, `sha256` is the digest of the file, if you know it. Versions are made of "
            "letters, digits and `. _ -`, an architecture of letters, digits and `_`; each begins with a "
            "letter or digit. Entries of one version, architecture and type are one image and must have one "
            "URL. Required, except with "
            "`COREOS_STREAMS` and in standalone mode, where a small sample image stands in.",
        ),
    )
    coreos_streams: tuple[StreamSource, ...] = attrs.field(
        repr=False,
        metadata=_variable(
            "COREOS_STREAMS",
            parse=parse_coreos_streams,
            absent=(),
            meaning="Streams to take base images from, with or without `OS_IMAGES`: a JSON list of objects."
            " `stream` (its name here), `url` (of its metadata, `http://…` or `https://…`) and "
            "`architectures` (a list) are required, `keep` is how many of the newest releases stay (2 when"
            " not given). The metal ISO of each architecture becomes a base image whose version is the "
            "release; the stream's name stands for the newest that is ready, where an OpenShift version is "
            "asked for.",
        ),
    )
    stream_refresh: float = attrs.field(
        metadata=_variable(
            "STREAM_REFRESH",
            parse=parsers.seconds,
            default="3600",
            meaning="Seconds, a tenth more or less, after which a stream is asked again what it offers.",
        ),
    )
    os_image_download_ca_file: Path | None = attrs.field(
        metadata=_variable(
            "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE",
            parse=parsers.ca_file,
            meaning="PEM file of certificate authorities that the sources of base images are trusted by, "
            "beside those of the system. What it holds when a connection is made counts.",
        ),
    )
    os_images_request_headers: Mapping[str, str] = attrs.field(
        repr=False,
        metadata=_variable(
            "OS_IMAGES_REQUEST_HEADERS",
            parse=parsers.field_map,
            absent=MappingProxyType({}),
            meaning="JSON object of header fields to send when a base image is fetched; another origin, to "
            "which a redirect may lead, does not get them.",
        ),
    )
    os_images_request_query_params: Mapping[str, str] = attrs.field(
        repr=False,
        metadata=_variable(
            "OS_IMAGES_REQUEST_QUERY_PARAMS",
            parse=parsers.string_map,
            absent=MappingProxyType({}),
            meaning="JSON object of query parameters to add when a base image is fetched; another origin does"
            " not get them.",
        ),
    )
    download_stall_timeout: float = attrs.field(
        metadata=_variable(
            "DOWNLOAD_STALL_TIMEOUT",
            parse=parsers.seconds,
            default="60",
            meaning="Seconds in which the source of a base image must make progress, of a KiB per second at "
            "the least; else the transfer is cut, to go on later from where it was.",
        ),
    )
    download_concurrency: int = attrs.field(
        metadata=_variable(
            "DOWNLOAD_CONCURRENCY",
            parse=parsers.whole_number(1, 64),
            default="2",
            meaning="Base images that are fetched at a time.",
        ),
    )
    download_retry_min: float = attrs.field(
        metadata=_variable(
            "DOWNLOAD_RETRY_MIN",
            parse=parsers.seconds,
            default="1",
            meaning="Seconds, or up to half as many, after which a base image that failed is tried again;"
            " twice as many after each further time, and not before its source wants to be asked "
            "(`Retry-After`).",
        ),
    )
    download_retry_max: float = attrs.field(
        metadata=_variable(
            "DOWNLOAD_RETRY_MAX",
            parse=parsers.seconds,
            default="300",
            meaning="The most seconds between two tries, where the source does not ask for more.",
        ),
    )
    ready_when: str = attrs.field(
        metadata=_variable(
            "READY_WHEN",
            parse=parsers.one_of({"all": "all", "any": "any"}),
            default="all",
            meaning="When `/health` begins to answer 200: once `all` base images are ready or their first"
            " attempts have failed, and at least one can be served; or once `any` is ready.",
        ),
    )
    signing_keys: Path | None = attrs.field(
        metadata=_variable(
            "SIGNING_KEYS",
            parse=parsers.readable_file,
            meaning="OpenPGP key ring, binary or in ASCII armour. With it, a base image is served only if it "
            "has a detached signature by one of the keys: at its URL with `.sig` at the end of the path, or "
            "beside a file. `gpgv` checks it. When not set: no signature is asked for.",
        ),
    )
    insecure_skip_verify: bool = attrs.field(
        metadata=_variable(
            "INSECURE_SKIP_VERIFY",
            parse=parsers.flag,
            default="false",
            meaning="`true`: fetch base images and ask assisted-service without verifying who answers. For "
            "trials only.",
        ),
    )
    log_level: str = attrs.field(
        metadata=_variable(
            "LOGLEVEL",
            "LOG_LEVEL",
            parse=parsers.log_level,
            default="info",
            meaning="The least that is logged: `debug`, `info`, `warn`, `error` or `critical`; `trace`, "
            "`warning`, `fatal` and `panic` are other names.",
        ),
    )
    log_ranges: str = attrs.field(
        metadata=_variable(
            "LOG_RANGES",
            parse=parsers.one_of({"summed": "summed", "each": "each"}),
            default="summed",
            meaning="`summed`: the ranges that one connection reads of one image are one line every 10 "
            "seconds; `each`: a line for each of them.",
        ),
    )
    standalone_listen: Listen = attrs.field(
        metadata=_variable(
            "STANDALONE_LISTEN",
            parse=parsers.listen,
            default="127.0.0.1:8090",
            absent=Listen("127.0.0.1", 0),
            meaning="IP address and port of the API of standalone mode.",
        ),
    )
    standalone_token: str | None = attrs.field(
        repr=False,
        metadata=_variable(
            "STANDALONE_TOKEN",
            parse=parsers.bearer_token,
            meaning="Bearer token that the API of standalone mode asks for. Without one it listens on "
            "loopback only.",
        ),
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, standalone: bool = False) -> Settings:
        """Read and check everything.

        Args:
            environ: such as ``os.environ``; other variables are ignored, empty ones are not set.
            standalone: whether the embedded stand-in takes assisted-service's place.

        Returns:
            settings that hold together.

        Raises:
            ConfigurationError: ``detail`` has one line per fault: the variable, what was found, unless it
                is a secret, and what would be right.
        """
        faults: list[str] = []
        values: dict[str, Any] = {
            field.name: field.metadata[Variable].read(environ, faults, secret=not field.repr)
            for field in attrs.fields(cls)
        }
        settings = cls(**values)
        faults += settings.contradictions(environ, standalone=standalone)
        if faults:
            raise ConfigurationError("\n".join(faults))
        return settings

    def contradictions(self, environ: Mapping[str, str], *, standalone: bool) -> Iterator[str]:
        """Name what is missing, and what is right by itself but not together with others."""
        for variable in variables():
            optional = standalone or ("OS_IMAGES" in variable.names and environ.get("COREOS_STREAMS"))
            if variable.required and not optional and not variable.find(environ):
                yield f"{' or '.join(variable.names)}: is not set, but required"
        if bool(environ.get("HTTPS_KEY_FILE")) != bool(environ.get("HTTPS_CERT_FILE")):
            yield "HTTPS_KEY_FILE and HTTPS_CERT_FILE: one is set; both must be, or none"
        if self.https_key_file and self.https_cert_file:
            yield from _pair_faults(self.https_key_file, self.https_cert_file)
        if self.http_listen_port and self.http_listen_port == self.listen_port:
            yield f"HTTP_LISTEN_PORT={self.http_listen_port}: LISTEN_PORT is the same; they must differ"
        if standalone and not self.standalone_listen.loopback and not environ.get("STANDALONE_TOKEN"):
            yield "STANDALONE_LISTEN is not on loopback; STANDALONE_TOKEN must be set then"

    @property
    def assisted_service_url(self) -> str:
        """Scheme, host and port of assisted-service; without a host in standalone mode."""
        host = self.assisted_service_host
        return f"{self.assisted_service_scheme}://{host.netloc if host else ''}"

    @property
    def https(self) -> bool:
        """Whether images are served over TLS."""
        return self.https_cert_file is not None

    @property
    def base_url(self) -> str:
        """The URL that clients reach this service by, without a slash at its end."""
        own = f"{'https' if self.https else 'http'}://localhost:{self.listen_port}"
        return self.image_service_base_url or own

    @property
    def base_path(self) -> str:
        """The path of ``base_url``: empty, or ``/`` and a name, and so on."""
        return urlsplit(self.base_url).path


def variables() -> list[Variable]:
    """Give every variable that is read."""
    return [field.metadata[Variable] for field in attrs.fields(Settings)]


def _pair_faults(key: Path, certificate: Path) -> Iterator[str]:
    """Load key and certificate as a listener would; an encrypted key fails instead of asking somebody."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        yield f"HTTPS_KEY_FILE={str(key)!r} and HTTPS_CERT_FILE={str(certificate)!r}: not a pair: {reason}"


def documentation() -> str:
    """Give the reference of all variables, as Markdown."""
    sections = [_INTRODUCTION]
    for variable in variables():
        sections.append("## " + ", else ".join(f"`{name}`" for name in variable.names))
        sections.append(textwrap.fill(variable.meaning, 110, break_on_hyphens=False))
        if variable.default is not None:
            sections.append(f"Default: `{variable.default}`")
    return "\n\n".join(sections) + "\n"


_INTRODUCTION = """# Configuration

Everything is configured by environment variables. All of them are read and checked at start; if any is wrong,
the service names every fault and does not start. A variable that is empty is not set. Durations are plain
seconds, sizes plain bytes. Where two names are given, the first that is set counts.

`make docs` generates this page from `image_service/settings/settings.py`."""


if __name__ == "__main__":
    sys.stdout.write(documentation())

"""Settings of listeners, TLS, limits, the process and its log."""

from __future__ import annotations

import resource
import ssl
from ipaddress import IPv4Address, ip_address
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.common.files.certificates import read_private_key
from image_service.common.http.default_route import find_default_address
from image_service.common.http.tls_policy import TlsPolicy, parse_suites, parse_version
from image_service.core.errors import ConfigurationError
from image_service.settings import parsers
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from ipaddress import IPv4Network, IPv6Address, IPv6Network
    from pathlib import Path

RESERVED_DESCRIPTORS = 256
"""Descriptors that are not connections: base images, calls to assisted-service, logs, the database."""
MAX_CONNECTIONS = 8192
_LOOPBACK = frozenset(map(ip_address, ("127.0.0.1", "::1")))


def _connection_limit() -> int | None:
    """The hard limit of open files less the reserved descriptors; None: there is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else max(1, hard - RESERVED_DESCRIPTORS)


def _parse_connections(text: str) -> int:
    number, limit = parsers.whole_number(1)(text), _connection_limit()
    if limit is not None and number > limit:
        raise ValueError(
            f"must be at most {limit}: the hard limit of open files (ulimit -Hn; LimitNOFILE of systemd) less"
            f" {RESERVED_DESCRIPTORS}"
        )
    return number


@attrs.frozen(kw_only=True)
class ListenSettings:
    """Ports and clients."""

    address: IPv4Address | IPv6Address | None = setting("LISTEN_ADDRESS", parse=parsers.ip_address)
    """IP address of `LISTEN_PORT` and `HTTP_LISTEN_PORT`. `::`: all addresses, those of IPv4 too; `0.0.0.0`:
    all of IPv4. When not set: all addresses; in standalone mode, which serves everybody without credentials,
    127.0.0.1. A container in standalone mode is reached from outside only with `0.0.0.0` or `::`."""
    port: int = setting("LISTEN_PORT", parse=parsers.port, default="8080")
    """Port for images: HTTPS if a key and a certificate are given, else HTTP. 0: any free port. `/health` and
    `/live` need no credentials here, nor on `HTTP_LISTEN_PORT`; neither do `/metrics` and `/images`, unless
    `ADMIN_LISTEN` is set, which is then the only listener to have them. `/metrics` tells how many requests of
    each route had which outcome, and how loaded the service is; `/images` tells the base images' versions,
    digests, sources (file paths and URLs without credentials), and why one failed. Nothing there names an
    infra-env."""
    http_port: int | None = setting("HTTP_LISTEN_PORT", parse=parsers.port)
    """Port for plain HTTP beside `LISTEN_PORT`, for clients that cannot trust its certificate. It serves
    `boot-artifacts`, the published files of streams, and probes, in which nothing is secret; `pxe-initrd`
    unless `HTTP_SERVES_INITRD` is `false`; ISOs only with `HTTP_SERVES_IMAGES`. With either of the latter,
    credentials (in URLs or `Authorization`) and the Ignition config with its pull secret travel unencrypted.
    When not set: there is no such port."""
    http_serves_initrd: bool = setting("HTTP_SERVES_INITRD", parse=parsers.flag, default="true")
    """`false`: `HTTP_LISTEN_PORT` does not serve `pxe-initrd` and `s390x-initrd-addrsize`, so that no
    Ignition config is sent in clear. The default is what assisted-image-service does."""
    http_serves_isos: bool = setting("HTTP_SERVES_IMAGES", parse=parsers.flag, default="false")
    """`true`: `HTTP_LISTEN_PORT` serves ISOs too."""
    serves_registry: bool = setting("SERVE_REGISTRY", parse=parsers.flag, default="false")
    """`true`: `/v2/` is a read-only OCI registry, in which each ISO is an artifact that `skopeo`, `oras` and
    `crane` fetch by digest: `byid/INFRA_ENV/VERSION/ARCH/full.iso`. It is at the root, also if
    `IMAGE_SERVICE_BASE_URL` has a path."""
    base_url: str | None = setting("IMAGE_SERVICE_BASE_URL", parse=parsers.base_url)
    """The URL by which clients reach this service. Everything is served below its path too. When not set:
    `LISTEN_ADDRESS` and `LISTEN_PORT`; for `0.0.0.0` and `::` the address of the interface that has the
    default route when the service starts, or in standalone mode the one that was chosen on the status page;
    without such a route, without `LISTEN_ADDRESS` and for 127.0.0.1 `localhost`. Another address makes other
    minimal ISOs, which have other ETags. In the jobs role: the URL of a byte server with the same base
    images, from which composed minimal ISOs fetch their root file system."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = setting(
        "TRUSTED_PROXIES", parse=parsers.networks, absent=()
    )
    """Networks of proxies whose `X-Forwarded-For` is taken for a client's address: addresses or CIDR blocks,
    separated by commas. When not set: the peer of a connection is the client."""
    allowed_origins: tuple[str, ...] = setting("ALLOWED_DOMAINS", parse=parsers.origins, absent=())
    """Origins whose pages may read responses (CORS), separated by commas. When not set: none."""

    @property
    def host(self) -> str:
        """The address or name by which clients reach the ports, unless ``base_url`` is set."""
        if self.address is None or self.address in _LOOPBACK:
            return "localhost"
        if not self.address.is_unspecified:
            return str(self.address)
        families = (AF_INET,) if isinstance(self.address, IPv4Address) else (AF_INET, AF_INET6)
        return next((str(found) for found in map(find_default_address, families) if found), "localhost")

    @property
    def base_path(self) -> str:
        """The path of the base URL: empty, or ``/`` and a name, and so on."""
        return urlsplit(self.base_url or "").path


@attrs.frozen(kw_only=True)
class TlsSettings:
    """TLS."""

    key_file: Path | None = setting("HTTPS_KEY_FILE", parse=parsers.readable_file)
    """PEM file of the private key, without passphrase. A key that every user may read (mode 0644, with which
    Kubernetes mounts a secret unless it has a `defaultMode`), or that belongs neither to root nor to the
    service's user, is logged as a warning at start; its group is the operator's choice. Set together with
    `HTTPS_CERT_FILE`, or not at all.
    When both files have changed, new connections use the new certificate, without a restart; as long as the
    files are not a pair, the previous one."""
    certificate_file: Path | None = setting("HTTPS_CERT_FILE", parse=parsers.readable_file)
    """PEM file of the certificate, followed by those of the authorities that signed it."""
    legacy_ciphers: bool = setting("TLS_LEGACY_CIPHERS", parse=parsers.flag, default="false")
    """`false`: with TLS 1.2 only ECDHE with AES-GCM or ChaCha20-Poly1305 is allowed. `true`: AES in CBC mode
    and RSA key exchange, without forward secrecy, are allowed too: who records such connections can decrypt
    them when the private key becomes known. Needed by firmware without elliptic curves, such as UEFI HTTPS
    boot and BMCs made before about 2022, and iPXE built before 2024. The certificate then needs an RSA
    key."""

    min_version: str = setting("TLS_MIN_VERSION", parse=parse_version, default="VersionTLS12")
    """The least version of TLS that the listeners accept, as Kubernetes names it: `VersionTLS10` to
    `VersionTLS13`. The first two mean the lowest that OpenSSL speaks at its security level, which is TLS 1.2.
    assisted-service's operator sets it from the cluster's profile."""
    cipher_suites: tuple[str, ...] = setting("TLS_CIPHER_SUITES", parse=parse_suites, absent=())
    """Cipher suites that the listeners accept, by their IANA names, separated by commas. Those of TLS 1.3
    restrict 1.3, if the list has some; without any of TLS 1.2, that version is refused. A suite that OpenSSL
    does not offer is logged as a warning. When not set: those of `TLS_LEGACY_CIPHERS`, and all of TLS 1.3."""

    @property
    def policy(self) -> TlsPolicy:
        """Version and suites."""
        return TlsPolicy(self.min_version, self.cipher_suites)

    @property
    def is_enabled(self) -> bool:
        """True if images are served over TLS."""
        return self.certificate_file is not None

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """Variables that are valid, but not together."""
        if self.legacy_ciphers and self.cipher_suites:
            yield "TLS_LEGACY_CIPHERS and TLS_CIPHER_SUITES: both name the ciphers; one of them must"
        if bool(environ.get("HTTPS_KEY_FILE")) != bool(environ.get("HTTPS_CERT_FILE")):
            yield "HTTPS_KEY_FILE and HTTPS_CERT_FILE: one is set; both must be, or none"
        if self.key_file and self.certificate_file:
            try:
                read_private_key(self.key_file, self.certificate_file)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.certificate_file, self.key_file, password="")
            except ConfigurationError as error:
                yield f"HTTPS_KEY_FILE and HTTPS_CERT_FILE: {error.detail}"
            except OSError as error:  # from OpenSSL, such as for a damaged certificate of an authority
                yield f"HTTPS_KEY_FILE and HTTPS_CERT_FILE: OpenSSL refuses them: {error}"


@attrs.frozen(kw_only=True)
class LimitSettings:
    """Limits and timeouts of connections."""

    connections: int = setting(
        "MAX_CONNECTIONS",
        parse=_parse_connections,
        converter=attrs.converters.default_if_none(
            factory=lambda: min(MAX_CONNECTIONS, _connection_limit() or MAX_CONNECTIONS)
        ),
    )
    """Connections at a time. For one more, the connection that has waited longest for a request, and for a
    second at least, is closed: first one that has not been served an image of an infra-env yet, and of those
    one of the address with the most connections; one that has been served an image only after 20 seconds. A
    client without an image must also take a response of at most 1 MiB in the time that 1 MiB takes at
    `MIN_DOWNLOAD_RATE` (16 seconds), or its connection may be closed too. If no connection can be closed,
    only `/health` and `/live` are answered on the new one. At most the hard limit of open files (`ulimit
    -Hn`) less 256, which are reserved for other uses; a larger number is refused. When not set: 8192, or that
    limit if it is lower."""
    connections_per_address: int = setting(
        "MAX_CONNECTIONS_PER_ADDRESS", parse=parsers.whole_number(0), default="0"
    )
    """Connections of one client address at a time, in each of `WORKERS`; more are closed at once. Behind
    `TRUSTED_PROXIES` the forwarded address counts: a request beyond the limit gets 503 with `Retry-After`.
    IPv6 addresses of one /64 network count as one. `0`: no limit, because a NAT or a load balancer has the
    connections of many clients."""
    downloads: int = setting("MAX_CONCURRENT_REQUESTS", parse=parsers.whole_number(1), default="400")
    """Downloads of more than 1 MiB at a time. As many again wait, in each of `WORKERS`, for 2 seconds, then
    they are refused with `Retry-After`. Smaller responses, such as the ranges of a mounted image, are not
    counted.

    While some wait, a slot that becomes free goes to the client address with the fewest slots; one address
    may use all that no other asks for. IPv6 addresses of one /64 network count as one. Public files (kernel,
    initrd, rootfs, `boot-artifacts`, stream mirrors) hold at most three quarters of the slots."""
    min_download_rate: int = setting("MIN_DOWNLOAD_RATE", parse=parsers.whole_number(0), default="65536")
    """Bytes per second below which a download may be aborted while others wait for a slot, the slowest one
    first; `0`: none is. The rate is what the client has acknowledged in the latest 4 seconds. A BMC's link of
    1 Mbit/s is 125,000 bytes/s; half of it is left for TCP, TLS, other traffic and jitter. All slots at this
    rate take 400 * 65,536 bytes/s = 210 Mbit/s: where the service's own link is slower than this product,
    lower one of the two."""
    handshake_seconds: float = setting("HANDSHAKE_TIMEOUT", parse=parsers.seconds, default="15")
    """Timeout of a TLS handshake, in seconds."""
    head_seconds: float = setting("HEAD_TIMEOUT", parse=parsers.seconds, default="5")
    """Timeout of a request's head, in seconds: of the first one from the accept, of the others from their
    first byte."""
    idle_seconds: float = setting("IDLE_TIMEOUT", parse=parsers.seconds, default="60")
    """Seconds for which a connection stays open between two requests."""
    stall_seconds: float = setting("STALL_TIMEOUT", parse=parsers.seconds, default="120")
    """Seconds without progress after which a response that its client does not read is aborted."""


@attrs.frozen(kw_only=True)
class ProcessSettings:
    """Processes and shutdown."""

    workers: int = setting("WORKERS", parse=parsers.whole_number(1, 64), default="1")
    """Processes that serve together, on the same ports and in the same `DATA_DIR`: as many as there are
    processors for them, and at most 64. Limits are for all of them together. With more than 1, another
    process supervises them, and replaces one that has died or has not responded for half a minute."""
    drain_delay_seconds: float = setting("DRAIN_DELAY", parse=parsers.delay, default="5")
    """Seconds between SIGTERM and the closing of the listeners, in which a load balancer can notice:
    `/health` returns 503, and clients are still served. SIGINT comes from a person at a terminal and has no
    such delay. A second signal forces the shutdown."""
    drain_timeout_seconds: float = setting("DRAIN_TIMEOUT", parse=parsers.delay, default="20")
    """Seconds that responses under way may then take before they are aborted. Both together must fit in the
    platform's grace period: 30 in Kubernetes, unless `terminationGracePeriodSeconds` is set, 10 with `podman
    stop`. While the store of snapshots fails, the process takes up to 8 s more for it."""


@attrs.frozen(kw_only=True)
class LogSettings:
    """Log."""

    level: str = setting(
        "LOGLEVEL", "LOG_LEVEL", parse=parsers.log_level, default="info", absent="info", from_file=True
    )
    """Minimum log level: `debug`, `info`, `warn`, `error` or `critical`; `trace`, `warning`, `fatal` and
    `panic` are other names."""
    format: str = setting(
        "LOG_FORMAT",
        parse=parsers.one_of("auto", "text", "json", "journal"),
        default="auto",
        absent="auto",
    )
    """`text`: readable lines with time, source and level. `json`: a JSON object per line. `journal`: readable
    lines that begin with their priority, such as `<4>`: `journalctl -p warning` finds them. `auto`: `text` on
    a terminal, `journal` if systemd connects standard output to the journal (`JOURNAL_STREAM`), else `json`.

    `twistd image-service` logs the same, to standard output or to the file of `--logfile`, which it never
    rotates; `--logger` and `--syslog` replace this log. [logging.md](logging.md) explains the lines."""
    ranges: str = setting("LOG_RANGES", parse=parsers.one_of("summed", "each"), default="summed")
    """`summed`: one line every 10 seconds for the ranges that a connection reads of an image; `each`: a line
    for each range."""

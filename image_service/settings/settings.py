"""The configuration of the service: environment variables, read in groups and checked at once."""

from __future__ import annotations

import os
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.command_line.messages import tell
from image_service.core.errors import ConfigurationError
from image_service.settings import parsers
from image_service.settings.admin import AdminSettings, LinkSettings, WebhookSettings
from image_service.settings.base_images import (
    CatalogSettings,
    DownloadSettings,
    StorageSettings,
    StreamSettings,
)
from image_service.settings.database import DatabaseSettings
from image_service.settings.network import (
    LimitSettings,
    ListenSettings,
    LogSettings,
    ProcessSettings,
    TlsSettings,
)
from image_service.settings.proxies import ProxySettings
from image_service.settings.registries import RegistrySettings
from image_service.settings.remote import RemoteSettings, S3Settings
from image_service.settings.signing import SigningSettings
from image_service.settings.upstream import SnapshotSettings, StandaloneSettings, UpstreamSettings
from image_service.settings.variables import groups_of, read_group, variables_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.settings.variables import ReadFile, Variable

_STANDALONE_ADDRESS = IPv4Address("127.0.0.1")


@attrs.frozen(kw_only=True)
class Settings:
    """All groups; the meaning of each setting is in its declaration. Durations are seconds, sizes bytes."""

    listen: ListenSettings = attrs.field(factory=ListenSettings)
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    limits: LimitSettings = attrs.field(factory=LimitSettings)
    process: ProcessSettings = attrs.field(factory=ProcessSettings)
    upstream: UpstreamSettings = attrs.field(factory=UpstreamSettings)
    proxies: ProxySettings = attrs.field(factory=ProxySettings)
    snapshots: SnapshotSettings = attrs.field(factory=SnapshotSettings)
    database: DatabaseSettings = attrs.field(factory=DatabaseSettings)
    storage: StorageSettings = attrs.field(factory=StorageSettings)
    catalog: CatalogSettings = attrs.field(factory=CatalogSettings)
    streams: StreamSettings = attrs.field(factory=StreamSettings)
    download: DownloadSettings = attrs.field(factory=DownloadSettings)
    remote: RemoteSettings = attrs.field(factory=RemoteSettings)
    s3: S3Settings = attrs.field(factory=S3Settings)
    registries: RegistrySettings = attrs.field(factory=RegistrySettings)
    admin: AdminSettings = attrs.field(factory=AdminSettings)
    webhook: WebhookSettings = attrs.field(factory=WebhookSettings)
    links: LinkSettings = attrs.field(factory=LinkSettings)
    signing: SigningSettings = attrs.field(factory=SigningSettings)
    log: LogSettings = attrs.field(factory=LogSettings)
    standalone: StandaloneSettings = attrs.field(factory=StandaloneSettings)

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        *,
        standalone: bool = False,
        read_file: ReadFile = parsers.file_content,
    ) -> Settings:
        """Read and check everything.

        Args:
            environ: such as ``os.environ``; unknown variables are ignored, empty ones are not set.
            standalone: True if the embedded stand-in takes assisted-service's place.
            read_file: reads the files that variables name.

        Raises:
            ConfigurationError: ``detail`` has one line per fault: the variable, the text found (unless it
                is a secret), and the values that are valid.
        """
        faults: list[str] = []
        values: dict[str, Any] = {
            name: read_group(group, environ, faults, read_file) for name, group in groups()
        }
        if standalone and values["listen"].address is None:
            values["listen"] = attrs.evolve(values["listen"], address=_STANDALONE_ADDRESS)
        settings = cls(**values)
        faults += settings._contradictions(environ, standalone=standalone)
        if faults:
            raise ConfigurationError("\n".join(dict.fromkeys(faults)))
        return settings

    def _contradictions(self, environ: Mapping[str, str], *, standalone: bool) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        for variable in variables():
            is_optional = standalone or ("OS_IMAGES" in variable.names and environ.get("COREOS_STREAMS"))
            if variable.required and not is_optional and not variable.is_set(environ):
                yield f"{' or '.join(variable.names)}: is not set, but required"
        if self.listen.http_port and self.listen.http_port == self.listen.port:
            yield f"HTTP_LISTEN_PORT={self.listen.http_port}: LISTEN_PORT is the same; they must differ"
        for group in (self.tls, self.catalog, self.download, self.admin, self.database, self.signing):
            yield from group.contradictions(environ)
        yield from self.streams.contradictions_with(self.catalog)
        if standalone and environ.get("ASSISTED_SERVICE_HOST"):
            yield (
                "--standalone and ASSISTED_SERVICE_HOST: both are given; standalone mode would serve "
                "everybody without asking assisted-service"
            )
        if standalone and not self.standalone.listen.is_loopback and not environ.get("STANDALONE_TOKEN"):
            yield "STANDALONE_LISTEN is not on loopback; STANDALONE_TOKEN must be set then"

    def base_url(self, port: int, address: str | None = None) -> str:
        """Return the URL by which clients reach this service, without a slash at its end.

        Args:
            port: bound for ``LISTEN_PORT``, which may be 0.
            address: in the place of that of the default route.
        """
        scheme = "https" if self.tls.is_enabled else "http"
        host = address or self.listen.host
        return self.listen.base_url or f"{scheme}://{parsers.Address(host, port).netloc}"

    def of_one_process(self) -> Settings:
        """Return them with one serving process's part of the limits that are for all together."""
        count, upstream, snapshots = self.process.workers, self.upstream, self.snapshots
        return attrs.evolve(
            self,
            upstream=attrs.evolve(upstream, concurrency=max(1, upstream.concurrency // count)),
            snapshots=attrs.evolve(snapshots, cache_bytes=snapshots.cache_bytes // count),
        )

    @property
    def source_urls(self) -> tuple[str, ...]:
        """The URLs of base images, digest lists and streams: their origins get the configured credentials."""
        return (*self.catalog.source_urls, *(source.url for source in self.streams.sources))


def read_settings(*, standalone: bool) -> Settings:
    """Return the settings of this process's environment.

    Raises:
        SystemExit: it has faults, all of which are printed; the status tells service managers that another
            try ends the same way.
    """
    try:
        return Settings.from_environment(os.environ, standalone=standalone)
    except ConfigurationError as error:
        tell(f"image-service: the configuration is not valid:\n{error.detail}")
        raise SystemExit(os.EX_CONFIG) from None


def groups() -> list[tuple[str, type[attrs.AttrsInstance]]]:
    """Return the name and class of each group."""
    return groups_of(Settings)


def variables() -> list[Variable]:
    """Return every variable that is read, once."""
    found = (variable for _, group in groups() for variable in variables_of(group))
    return list({variable.names: variable for variable in found}.values())


def read_texts(environ: Mapping[str, str], read_file: ReadFile = parsers.file_content) -> dict[str, str]:
    """Return the contents of the files that variables name as ``@FILE``, by the names of the variables.

    Raises:
        ValueError: a file cannot be read.
    """
    texts = {}
    for variable in variables():
        name, text = variable.find(environ)
        if text is not None and variable.is_file(text):
            texts[name] = variable.resolve(text, read_file)
    return texts

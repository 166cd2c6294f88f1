"""The configuration of ``image-service jobs``: read in groups and checked at once."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.command_line.messages import tell
from image_service.core.errors import ConfigurationError
from image_service.settings.admin import AdminSettings
from image_service.settings.base_images import (
    CatalogSettings,
    DownloadSettings,
    StorageSettings,
    StreamSettings,
)
from image_service.settings.database import DatabaseSettings
from image_service.settings.jobs.ec2 import Ec2Settings
from image_service.settings.jobs.engine import EngineSettings
from image_service.settings.jobs.jobs import JobsSettings
from image_service.settings.jobs.tenants import TenantSettings
from image_service.settings.network import LogSettings, TlsSettings
from image_service.settings.proxies import ProxySettings
from image_service.settings.registries import RegistrySettings
from image_service.settings.remote import RemoteSettings, S3Settings
from image_service.settings.signing import SigningSettings
from image_service.settings.variables import groups_of, read_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MODULES = ("temporalio", "jwt", "jsonschema")
"""Of the extra, those without which the role does not start."""
_WORKER_SLOTS = 2
"""With one, a job of a tenant would wait for the job of another; see docs/performance-history.md."""


@attrs.frozen(kw_only=True)
class JobsRoleSettings:
    """All groups of the jobs role; most are those of the byte server too."""

    jobs: JobsSettings = attrs.field(factory=JobsSettings)
    engine: EngineSettings = attrs.field(factory=EngineSettings)
    tenants: TenantSettings = attrs.field(factory=TenantSettings)
    ec2: Ec2Settings = attrs.field(factory=Ec2Settings)
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    proxies: ProxySettings = attrs.field(factory=ProxySettings)
    database: DatabaseSettings = attrs.field(factory=DatabaseSettings)
    storage: StorageSettings = attrs.field(factory=StorageSettings)
    catalog: CatalogSettings = attrs.field(factory=CatalogSettings)
    streams: StreamSettings = attrs.field(factory=StreamSettings)
    download: DownloadSettings = attrs.field(factory=DownloadSettings)
    remote: RemoteSettings = attrs.field(factory=RemoteSettings)
    s3: S3Settings = attrs.field(factory=S3Settings)
    registries: RegistrySettings = attrs.field(factory=RegistrySettings)
    admin: AdminSettings = attrs.field(factory=AdminSettings)
    signing: SigningSettings = attrs.field(factory=SigningSettings)
    log: LogSettings = attrs.field(factory=LogSettings)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> JobsRoleSettings:
        """Read and check everything; no variable is required.

        Args:
            environ: such as ``os.environ``; unknown variables are ignored, empty ones are not set.

        Raises:
            ConfigurationError: ``detail`` has one line per fault, as that of `Settings`.
        """
        faults: list[str] = []
        values: dict[str, Any] = {name: read_group(group, environ, faults) for name, group in groups_of(cls)}
        data_dir = values["storage"].data_dir
        try:
            if data_dir is not None:  # else its text is a fault
                values["jobs"] = values["jobs"].in_directory(data_dir)
        except ValueError as error:
            faults += error.args
        settings = cls(**values)
        faults += settings._contradictions(environ)
        if faults:
            raise ConfigurationError("\n".join(dict.fromkeys(faults)))
        return settings

    def _contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        missing = [module for module in _MODULES if find_spec(module) is None]
        if missing:
            yield (
                f"image-service jobs needs {', '.join(missing)}; install the package image-service-jobs,"
                " or the wheel with its extra jobs"
            )
        for group in (
            self.engine,
            self.tenants,
            self.ec2,
            self.tls,
            self.catalog,
            self.download,
            self.admin,
            self.database,
            self.signing,
        ):
            yield from group.contradictions(environ)
        yield from self.streams.contradictions_with(self.catalog)
        needs_tokens = self.jobs.apis != {"ec2"}  # its requests are signed
        if self.jobs.public_addresses and needs_tokens and not self.tenants.is_enabled:
            yield "JOBS_LISTEN is not on loopback; JWT_KEYS_URL or JWT_KEYS_FILE must be set then"
        if self.jobs.public_addresses and not (self.tls.is_enabled or self.jobs.plain_http):
            yield (
                "JOBS_LISTEN is not on loopback; HTTPS_CERT_FILE and HTTPS_KEY_FILE must be set then, or"
                " JOBS_PLAIN_HTTP=true where a proxy ends TLS"
            )
        if self.jobs.worker_slots and not self._may_start_worker:
            yield (
                f"JOBS_WORKER_SLOTS={self.jobs.worker_slots}: needs worker in JOBS_APIS, and a Unix socket in"
                " JOBS_LISTEN"
            )

    @property
    def served_apis(self) -> frozenset[str]:
        """The APIs that this process serves: EC2's only with access keys."""
        return self.jobs.apis if self.ec2.credentials_file else self.jobs.apis - {"ec2"}

    @property
    def worker_slots(self) -> int:
        """Jobs at a time of the worker that this process starts."""
        if self.jobs.worker_slots is not None:
            return self.jobs.worker_slots
        return _WORKER_SLOTS if self._may_start_worker and self.engine.address is None else 0

    @property
    def _may_start_worker(self) -> bool:
        return "worker" in self.jobs.apis and self.jobs.socket_path is not None

    @property
    def source_urls(self) -> tuple[str, ...]:
        """The URLs of base images and streams: their origins get the configured credentials."""
        return (*self.catalog.source_urls, *(source.url for source in self.streams.sources))


def read_jobs_settings() -> JobsRoleSettings:
    """Return the settings of this process's environment.

    Raises:
        SystemExit: it has faults, all of which are printed. The status is 78: service managers do not restart
            the process.
    """
    try:
        return JobsRoleSettings.from_environment(os.environ)
    except ConfigurationError as error:
        tell(f"image-service jobs: the configuration is not valid:\n{error.detail}")
        raise SystemExit(os.EX_CONFIG) from None

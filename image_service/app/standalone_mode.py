"""Standalone mode: the embedded stand-in for assisted-service, and the sample image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.server.catalog.storage.data_dir import create_directory
from image_service.server.standalone.sample import (
    SAMPLE_ARCHITECTURE,
    SAMPLE_OPENSHIFT_VERSION,
    SAMPLE_VERSION,
    unpack_sample,
)
from image_service.server.standalone.service import Standalone
from image_service.settings.os_images import FULL_ISO, OsImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.admin.admin_api import AdminApi
    from image_service.server.catalog.catalog import Catalog
    from image_service.server.standalone.assisted_api import FindFamily
    from image_service.settings.settings import Settings

_log = Logger()


@attrs.frozen
class StandIn:
    """A stand-in that runs, in this process or in the supervisor."""

    base_url: str  # of its API
    ca_file: Path = attrs.field(converter=Path)  # PEM: the authority to trust for that
    sample: str | None  # path below the service's URL; None: no image can be fetched


async def start_stand_in(
    parts: PartsStack,
    settings: Settings,
    base_images: Iterable[OsImage],
    get_base_url: Callable[[], str],
    find_family: FindFamily,
) -> tuple[StandIn, AdminApi]:
    """Start the stand-in, and register a sample of the configured images if it has no infra-env.

    Args:
        find_family: see `InfraEnvApi`.

    Returns:
        the stand-in, and its operations for the administrative listener.

    Raises:
        ConfigurationError: its address cannot be listened on.
        OSError: ``DATA_DIR`` cannot be written.
    """
    standalone = Standalone(
        parts.reactor,
        settings.storage.data_dir,
        settings.standalone.listen,
        settings.standalone.token,
        get_base_url,
    )
    standalone.find_family = find_family
    await standalone.start()
    parts.push_async_callback(standalone.stop)
    sample = None
    image = next((image for image in base_images if image.image_type == FULL_ISO), None)
    if image is not None:
        infra_env = await standalone.ensure_sample(image.openshift_versions[0], image.cpu_architecture)
        sample = infra_env and f"byid/{infra_env}/{image.version}/{image.cpu_architecture}/full.iso"
    return StandIn(standalone.base_url, standalone.ca_file, sample), standalone.operations


def configured_images(settings: Settings, *, standalone: bool) -> tuple[OsImage, ...]:
    """Return the base images that are configured; in standalone mode without any, the sample.

    Raises:
        OSError: the sample cannot be written.
    """
    if not standalone or settings.catalog.isos or settings.streams.sources:
        return settings.catalog.isos
    data_dir = settings.storage.data_dir
    create_directory(data_dir)
    sample = OsImage(
        version=SAMPLE_VERSION,
        cpu_architecture=SAMPLE_ARCHITECTURE,
        image_type=FULL_ISO,
        openshift_versions=(SAMPLE_OPENSHIFT_VERSION,),
        url=unpack_sample(data_dir).resolve().as_uri(),
    )
    return (sample,)


def announce_sample(catalog: Catalog, url: str, then: Callable[[], None]) -> None:
    """Log the sample's URL once it can be fetched, and call `then`; stopping does not wait for that."""

    async def announce() -> None:
        await catalog.wait_for_attempts()
        if catalog.is_ready:
            _log.info("try it: curl -fo full.iso {url}", url=url)
        then()

    announced = Deferred.fromCoroutine(announce())
    announced.addErrback(lambda failure: _log.failure("cannot announce the sample image", failure=failure))

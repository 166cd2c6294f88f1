"""The embedded stand-in for assisted-service, as those see it who ask it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.settings.os_images import FULL_ISO, OsImage
from image_service.standalone.service import Standalone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.epollreactor import EPollReactor

    from image_service.app.lifecycle import Running
    from image_service.settings.settings import Settings


@attrs.frozen
class StandIn:
    """A stand-in that runs.

    Args:
        base_url: what it is asked by.
        ca_file: the certificate authority to trust for that, PEM.
        sample: path of an image that can be fetched, below the service's URL; None: there is no sample.
    """

    base_url: str
    ca_file: Path = attrs.field(converter=Path)
    sample: str | None


async def start_stand_in(
    reactor: EPollReactor,
    settings: Settings,
    running: Running,
    entries: Iterable[OsImage],
    base_url: str,
) -> StandIn:
    """Start it, and register a sample where there is no infra-env.

    Args:
        reactor: the one that runs.
        settings: what the environment says.
        running: where it ends.
        entries: the base images that are configured.
        base_url: that clients reach this service by.

    Raises:
        ConfigurationError: its address cannot be listened on.
        OSError: ``DATA_DIR`` cannot be written.
    """
    standalone = Standalone(
        reactor, settings.storage.data_dir, settings.standalone.listen, settings.standalone.token, base_url
    )
    await standalone.start()
    running.push_async_callback(standalone.stop)
    return StandIn(standalone.base_url, standalone.ca_file, await _sample(standalone, entries))


async def _sample(standalone: Standalone, entries: Iterable[OsImage]) -> str | None:
    image = next((image for image in entries if image.image_type == FULL_ISO), None)
    if image is None:
        return None
    infra_env = await standalone.ensure_sample(image.openshift_versions[0], image.cpu_architecture)
    return infra_env and f"byid/{infra_env}/{image.version}/{image.cpu_architecture}/full.iso"

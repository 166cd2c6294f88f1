"""What all histories share: base images, settings, and the database server."""

from __future__ import annotations

import gc
import json
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import UnknownBaseImage
from image_service.core.images.reference import Kind
from image_service.settings.settings import Settings
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.images.building import base_image
from tests.simulation.database import SimulatedServer
from tests.simulation.oracle import GRACE_SECONDS, TTL_SECONDS, WINDOW_SECONDS, Base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage

AREA_BYTES = 8192
PADDING_BYTES = 96 * 1024
"""Before the area of the config: a range after the beginning begins there."""
_OS_IMAGE = {
    "openshift_version": "4.20",
    "cpu_architecture": "x86_64",
    "url": "https://origin.test/live.iso",
    "version": "9.6.0",
}


@attrs.frozen(eq=False)
class Scenery:
    """What all histories share: base images, settings, and the database server."""

    images: list[BaseImage]
    bases: list[Base]
    settings: Settings
    server: SimulatedServer


@contextmanager
def scenery(directory: Path) -> Iterator[Scenery]:
    """Make what all histories share; files go into a directory."""
    with ExitStack() as stack:
        images, bases = [], []
        for number in range(2):
            iso = _make_iso(number)
            image = stack.enter_context(base_image(iso, version=f"9.6.{number}"))
            area = image.coreos.ignition
            images.append(image)
            bases.append(Base(iso, area.offset, area.length))
        secret = directory / "secret"
        secret.write_text("5a" * 32)
        environ = {
            "ASSISTED_SERVICE_HOST": "assisted.test",
            "DATABASE_URL": "postgresql://user@database.test/0",
            "DATA_DIR": str(directory),
            "INSTANCE_SECRET_FILE": str(secret),
            "MOUNT_WINDOW": str(WINDOW_SECONDS),
            "OS_IMAGES": json.dumps([_OS_IMAGE]),
            "SNAPSHOT_GRACE": str(GRACE_SECONDS),
            "SNAPSHOT_MAX_AGE": "120",
            "SNAPSHOT_TTL": str(TTL_SECONDS),
        }
        settings = Settings.from_environment(environ)
        gc.collect()
        gc.freeze()
        yield Scenery(images, bases, settings, SimulatedServer(lambda: 0.0))


def _make_iso(number: int) -> bytes:
    noise = Random(number)
    files = live_files() | {
        "images/efiboot.img": noise.randbytes(PADDING_BYTES),
        "images/ignition.img": bytes(AREA_BYTES),
        "images/pxeboot/rootfs.img": noise.randbytes(3000),
    }
    return build_live_iso(files)


@attrs.define(eq=False)
class SimulatedCatalog:
    """The base image that `4.20` names now, and the other one, which each replica keeps for its mounts."""

    images: list[BaseImage]
    current: int = 0

    def find_base_image(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """As `BaseImageSource.find_base_image`."""
        image = self.images[self.current]
        if version not in {"4.20", image.version} or (architecture, kind) != ("x86_64", Kind.FULL_ISO):
            raise UnknownBaseImage(f"there is no {version}")
        return image

    def find_by_digest(self, sha256: str, kind: Kind) -> BaseImage | None:
        """As `BaseImageSource.find_by_digest`."""
        del kind
        return next((image for image in self.images if image.sha256 == sha256), None)

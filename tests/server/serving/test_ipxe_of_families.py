"""iPXE scripts of other families than CoreOS: which URLs they name, and where they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs
import pytest
from twisted.internet.defer import Deferred, succeed

from image_service.core.errors import NotFound
from image_service.core.families.iso_layout import BootFiles, IsoLayout
from image_service.core.families.live.ubuntu import UBUNTU
from image_service.core.formats.reading import Span
from image_service.core.images.base_image import BaseImage
from image_service.core.images.customization import Customization
from image_service.core.images.reference import Credentials, CredentialScheme, ImageRef, Kind, Reader
from image_service.server.serving.ipxe_scripts import IpxeScripts
from tests.core.images.building import base_file
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.server.snapshots.image_finder import ImageFinder

ID = "5a3b1e00-0000-4000-8000-000000000001"
SECRET = "s3cret"
READER = Reader(
    "192.0.2.1",
    Credentials(CredentialScheme.API_KEY, SECRET),
    ImageRef(ID, "24.04", "x86_64", Kind.IPXE_SCRIPT),
)
BASE_URL = "https://images.test:8080"


@attrs.frozen
class Finder:
    """Has one infra-env, whose config only images have."""

    base: BaseImage

    def get_customization(self, reader: Reader, _: str) -> Deferred[tuple[BaseImage, Customization]]:
        assert isinstance(reader.ref, ImageRef)
        config = b"autoinstall: {version: 1}" if reader.ref.kind is Kind.PXE_INITRD else b""
        return succeed((self.base, Customization(config, (), None)))


@pytest.fixture
def finder() -> Iterator[ImageFinder]:
    files = BootFiles(Span("casper/vmlinuz", 0, 1), Span("casper/initrd", 1, 1))
    with base_file(b"ki") as file:
        base = BaseImage(file, IsoLayout("", None, 2, files), "0" * 64, "24.04", "x86_64", family=UBUNTU)
        yield cast("ImageFinder", Finder(base))


@ensure_deferred
async def test_kernel_fetches_the_iso_of_the_infra_env_without_credentials(finder: ImageFinder) -> None:
    script = (
        await IpxeScripts(finder, lambda: BASE_URL, "", uses_host=False).render(READER, {}, "")
    ).decode()
    (kernel,) = (line for line in script.splitlines() if line.startswith("kernel"))
    assert f" url={BASE_URL}/byid/{ID}/24.04/x86_64/full.iso cloud-config-url=/dev/null autoinstall" in kernel
    assert SECRET not in kernel  # every user of the machine can read it in /proc/cmdline
    assert f"pxe-initrd?version=24.04&arch=x86_64&api_key={SECRET}\n" in script


@ensure_deferred
async def test_listener_that_serves_no_isos_has_no_such_script(finder: ImageFinder) -> None:
    scripts = IpxeScripts(finder, lambda: BASE_URL, "", uses_host=True, serves_isos=False)
    with pytest.raises(NotFound, match="set HTTP_SERVES_IMAGES"):
        await scripts.render(READER, {"host": "images.test"}, "")


@ensure_deferred
async def test_short_link_does_not_stand_for_a_script_that_names_the_iso(finder: ImageFinder) -> None:
    with pytest.raises(NotFound, match="no short link stands for its iPXE script"):
        await IpxeScripts(finder, lambda: BASE_URL, "", uses_host=False).render(READER, {}, "", "code")

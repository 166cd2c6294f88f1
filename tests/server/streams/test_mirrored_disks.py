from __future__ import annotations

import copy
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interruption
from image_service.core.families.coreos.stream_metadata import select_releases
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.streams.mirrored_disks import MirroredDisks
from image_service.server.streams.release_preparer import ReleasePreparer
from image_service.server.streams.stream import StreamRelease
from image_service.settings.base_images import DownloadSettings
from tests.core.families.coreos.streams import stream
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.catalog.origin import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.catalog.lines import Lines
    from tests.server.catalog.origin import Origin

RAW, QCOW2 = b"raw disk" * 1000, b"qcow2 disk" * 1000
SIGNATURE = b"\x89\x02\x33 signature"
NAMES = {"rhcos-metal-raw.xz-44.1-x86_64.img", "rhcos-qemu-qcow2.xz-44.1-x86_64.img"}


@attrs.define(eq=False)
class Setup:
    """Mirrored artifacts over a directory, and the origin."""

    disks: MirroredDisks
    origin: Origin
    directory: Path
    interruption: Interruption
    changed: Deferred[None] = attrs.field(factory=Deferred)

    def release(self, *mirrored: str, release: str = "44.1") -> StreamRelease:
        document = stream(release, origin=self.origin.url(""))
        artifacts = document["architectures"]["x86_64"]["artifacts"]
        for platform, image_format, content in (("metal", "raw.xz", RAW), ("qemu", "qcow2.xz", QCOW2)):
            location = self.origin.url(f"/{release}/{image_format}")
            disk: dict[str, Any] = {"location": location, "sha256": hashlib.sha256(content).hexdigest()}
            if platform == "metal":
                disk["signature"] = f"{location}.sig"
            platforms = artifacts.setdefault(platform, {"release": release, "formats": {}})
            platforms["formats"][image_format] = {"disk": disk}
        (found,) = select_releases(copy.deepcopy(document), ["x86_64"])
        return StreamRelease("stable", found, mirrored=mirrored)

    async def change(self) -> None:
        """Wait until a file is there."""
        await self.changed
        self.changed = Deferred()

    def on_change(self) -> None:
        self.changed.callback(None)


@async_fixture
async def setup(reactor: EPollReactor, origin: Origin, tmp_path: Path) -> AsyncIterator[Setup]:
    pool = ThreadPool(0, 1, "disks")
    pool.start()
    client, interruption = OriginClient.from_settings(DownloadSettings()), Interruption()
    data_dir = DataDir(tmp_path)
    data_dir.open()
    disks = MirroredDisks(
        ImageFetcher(data_dir, partial(download_file, client)),
        ReleasePreparer(tmp_path, client, interruption, data_dir.claim_files),
        lambda work: deferToThreadPool(reactor, pool, work),
        interruption,
        Backoff(0.01, 0.01),
    )
    made = Setup(disks, origin, tmp_path, interruption)
    disks.on_change = made.on_change
    yield made
    interruption.interrupt()
    await disks.stop()
    data_dir.close()
    pool.stop()


@ensure_deferred
async def test_asked_artifacts_are_fetched_with_their_signatures(setup: Setup) -> None:
    setup.origin.serve("/44.1/raw.xz", Reply(RAW))
    setup.origin.serve("/44.1/raw.xz.sig", Reply(SIGNATURE))
    setup.origin.serve("/44.1/qcow2.xz", Reply(QCOW2))
    release = setup.release("metal/raw.xz", "qemu/qcow2.xz", "aws/vmdk.xz")
    setup.disks.update([release])
    assert setup.disks.names == NAMES
    assert setup.disks.find(release) == {}
    await setup.change()
    await setup.change()
    found = setup.disks.find(release)
    raw, qcow2 = found["metal", "raw.xz"], found["qemu", "qcow2.xz"]
    for file, content in ((raw, RAW), (qcow2, QCOW2)):
        assert file.file is not None
        assert file.file.read_at(0, file.length) == content
        assert file.sha256 == hashlib.sha256(content).hexdigest()
    assert (raw.name, raw.signature, qcow2.signature) == ("raw.xz", SIGNATURE, None)
    requests = len(setup.origin.requests)
    setup.disks.update([release])
    assert (len(setup.origin.requests), setup.disks.find(release)) == (requests, found)


@ensure_deferred
async def test_nothing_is_fetched_that_is_not_asked(setup: Setup) -> None:
    setup.disks.update([setup.release()])
    await setup.disks.stop()
    assert (setup.origin.requests, setup.disks.names) == ([], set())


@pytest.mark.parametrize(
    "first", [Reply(status=503), Reply(QCOW2[::-1]), Reply(QCOW2, promised=len(QCOW2) + 1)]
)
@ensure_deferred
async def test_failed_download_is_tried_again(setup: Setup, lines: Lines, first: Reply) -> None:
    setup.origin.serve("/44.1/qcow2.xz", first, Reply(QCOW2))
    release = setup.release("qemu/qcow2.xz")
    setup.disks.update([release])
    await setup.change()
    assert [*setup.disks.find(release)] == [("qemu", "qcow2.xz")]
    assert "rhcos-qemu-qcow2.xz-44.1-x86_64.img cannot be mirrored" in lines.text


@ensure_deferred
async def test_artifacts_of_other_releases_are_forgotten(setup: Setup) -> None:
    setup.origin.serve("/44.1/qcow2.xz", Reply(QCOW2))
    setup.origin.serve("/44.2/qcow2.xz", Reply(QCOW2))
    first, second = setup.release("qemu/qcow2.xz"), setup.release("qemu/qcow2.xz", release="44.2")
    setup.disks.update([first])
    await setup.change()
    setup.disks.update([second])
    assert setup.disks.find(first) == {}
    assert setup.disks.names == {"rhcos-qemu-qcow2.xz-44.2-x86_64.img"}
    await setup.change()
    assert [*setup.disks.find(second)] == [("qemu", "qcow2.xz")]


@ensure_deferred
async def test_stop_interrupts_a_download(setup: Setup) -> None:
    setup.origin.serve("/44.1/qcow2.xz", Reply(QCOW2[:100], promised=len(QCOW2), hold=True))
    setup.disks.update([setup.release("qemu/qcow2.xz")])
    setup.interruption.interrupt()
    await setup.disks.stop()
    setup.origin.released.set()


@pytest.mark.parametrize("taken", ["iso", "other"])
def test_artifact_with_the_file_name_of_another_is_not_mirrored(setup: Setup, taken: str) -> None:
    release = setup.release("metal/raw.xz", "qemu/qcow2.xz")
    artifacts: Any = copy.deepcopy(release.release.original)["artifacts"]
    iso, metal = artifacts["metal"]["formats"]["iso"]["disk"], artifacts["metal"]["formats"]["raw.xz"]["disk"]
    name = (iso if taken == "iso" else metal)["location"].rpartition("/")[2]
    artifacts["qemu"]["formats"]["qcow2.xz"]["disk"]["location"] = setup.origin.url(f"/elsewhere/{name}")
    changed = attrs.evolve(release.release, original={"artifacts": artifacts})
    mirrored = attrs.evolve(release, release=changed).mirrored_files
    assert [file.platform for file, _ in mirrored] == ["metal"]

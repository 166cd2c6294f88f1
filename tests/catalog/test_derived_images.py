from __future__ import annotations

import gc
import gzip
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.task import Clock, deferLater
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import implementer

from image_service.catalog.derived import derived_files
from image_service.catalog.derived.derivation import DERIVATION_VERSION
from image_service.catalog.derived.derived_images import RETRY_SECONDS, DerivedImages
from image_service.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from image_service.concurrency.interruption import Interrupted
from image_service.errors import Unavailable
from image_service.files.atomic import scratch_directory
from tests.acceptance.clients import needs_client
from tests.catalog import full_isos, mastered
from tests.catalog.fake_xorriso import fake_xorriso
from tests.catalog.full_isos import VERSION, open_iso
from tests.formats.file_systems import OSTREE_FILES, cpio, erofs_fixture
from tests.formats.reading import fixture
from tests.pytwisted import async_fixture, ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.logger import LogEvent

    from image_service.images.base import BaseImage
    from tests.conftest import LoggedFailures

NMSTATECTL = next(content for name, content in OSTREE_FILES.items() if name.endswith("/nmstatectl"))
ROOTFS = cpio(("root.squashfs", erofs_fixture("fragments")))
MINIMAL_ISO = f"rhcos-derived-minimal-iso-{VERSION}-x86_64.iso"
MINIMAL_ISO_NAME = f"the minimal ISO of the base image {VERSION} (x86_64)"
NMSTATE = f"rhcos-nmstate-{VERSION}-x86_64.img"


@implementer(ILogObserver)
@attrs.define(eq=False)
class LoggedRequest:
    """What the log says, to be waited for."""

    reactor: EPollReactor
    lines: list[str] = attrs.field(factory=list)
    _unread: DeferredQueue[str] = attrs.field(factory=DeferredQueue)

    def __call__(self, event: LogEvent) -> None:
        """Take note of a line."""
        self.lines.append(formatEvent(event))
        self._unread.put(self.lines[-1])

    async def until(self, text: str) -> None:
        """Wait for a line with this text; another failure ends the test instead of the wait."""
        line = ""
        while text not in line:
            assert "could not be made" not in line, line
            line = await self._unread.get()
        await deferLater(self.reactor, 0.0)  # it is told from the middle of what it belongs to


@attrs.frozen
class Bench:
    """Makes templates over one directory, and stops them in the end.

    Args:
        iso: a full ISO.
        told: the log.
    """

    reactor: EPollReactor
    clock: Clock
    iso: Path
    data_dir: Path
    told: LoggedRequest
    started: list[DerivedImages]
    opened: list[int]

    def start(self) -> DerivedImages:
        """As at a start of the service."""
        templates = DerivedImages(self.reactor, self.clock, DataDir(self.data_dir))
        self.started.append(templates)
        return templates

    def open(self, path: Path | None = None, openshift: str = "4.19") -> BaseImage:
        """Open a base image."""
        base = open_iso(path or self.iso, openshift=openshift)
        self.opened.append(base.file.descriptor)
        return base

    def names(self) -> set[str]:
        """What is in the directory."""
        return {path.name for path in self.data_dir.iterdir()} - {LOCKS, MANIFEST}


@pytest.fixture(scope="module")
def iso(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full ISO whose rootfs has nmstatectl."""
    path: Path = tmp_path_factory.mktemp("isos") / "full.iso"
    full_isos.x86_64(path, ROOTFS)
    return path


@pytest.fixture
def told(reactor: EPollReactor) -> Iterator[LoggedRequest]:
    """Read along in the log."""
    observer = LoggedRequest(reactor)
    globalLogPublisher.addObserver(observer)
    yield observer
    globalLogPublisher.removeObserver(observer)


@async_fixture
async def bench(
    reactor: EPollReactor, told: LoggedRequest, iso: Path, tmp_path: Path
) -> AsyncIterator[Bench]:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    bench = Bench(reactor, Clock(), iso, data_dir, told, [], [])
    yield bench
    for templates in bench.started:
        await templates.stop()
    for descriptor in bench.opened:
        os.close(descriptor)


@ensure_deferred
async def test_who_asks_too_soon_is_told_when_to_come_back(bench: Bench) -> None:
    base, templates = bench.open(), bench.start()
    for _ in range(2):
        with pytest.raises(Unavailable, match=re.escape(f"{MINIMAL_ISO_NAME} is being made")) as refusal:
            templates.get_minimal_iso(base)
        assert refusal.value.retry_after_seconds == 5
    await bench.told.until("is ready")
    template = templates.get_minimal_iso(base)

    image = os.pread(template.file.descriptor, template.file.size, 0)
    assert template.sha256 == hashlib.sha256(image).hexdigest()
    assert template.layout.ramdisk
    assert template.layout.files.rootfs is None
    assert (template.version, template.architecture) == (base.version, base.architecture)
    archive = mastered.files(image)["IMAGES/NMSTATE.IMG"].read(image)
    assert NMSTATECTL in gzip.decompress(archive)
    assert sum("is being made" in line for line in bench.told.lines) == 1


@ensure_deferred
async def test_what_was_prepared_is_there(bench: Bench) -> None:
    base, templates = bench.open(), bench.start()
    templates.prepare(base)
    await bench.told.until("the initrd with nmstatectl of")
    await bench.told.until("the minimal ISO of")
    await bench.told.until("is ready")
    await bench.told.until("is ready")

    nmstate = templates.get_nmstate_image(base)
    archive = os.pread(nmstate.file.descriptor, nmstate.file.size, 0)
    assert NMSTATECTL in gzip.decompress(archive)
    assert nmstate.sha256 == hashlib.sha256(archive).hexdigest()
    assert templates.get_minimal_iso(base).layout.customized is None
    made = {MINIMAL_ISO, NMSTATE}
    assert bench.names() == made | {f"{name}.json" for name in made}


@ensure_deferred
async def test_without_nmstatectl_there_is_a_minimal_iso_alone(bench: Bench) -> None:
    base, templates = bench.open(openshift="4.17"), bench.start()
    templates.prepare(base)
    await bench.told.until("is ready")
    template = templates.get_minimal_iso(base)
    image = os.pread(template.file.descriptor, template.file.size, 0)
    assert "IMAGES/NMSTATE.IMG" not in mastered.files(image)
    assert NMSTATE not in bench.names()


@ensure_deferred
async def test_what_no_image_needs_is_not_prepared(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "miniso.iso"
    path.write_bytes(fixture("embed-areas-2022-02.iso"))
    with_recipe = bench.open(path, openshift="4.17")
    assert with_recipe.layout.minimal
    templates = bench.start()
    templates.prepare(with_recipe)
    templates.prepare(attrs.evolve(bench.open(openshift="4.17"), architecture="s390x"))
    templates.prepare(attrs.evolve(bench.open(), disconnected=True))
    assert bench.told.lines == []
    templates.prepare(attrs.evolve(bench.open(), architecture="s390x"))
    await bench.told.until("is ready")
    assert [line for line in bench.told.lines if "minimal" in line] == []


@ensure_deferred
async def test_a_recipe_does_not_help_where_nmstatectl_must_be_added(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "miniso.iso"
    path.write_bytes(fixture("embed-areas-2022-02.iso"))
    bench.start().prepare(bench.open(path, openshift="4.19"))
    for sort in ("the initrd with nmstatectl of", "the minimal ISO of"):  # its rootfs is a line of text
        await bench.told.until(f"{sort} the base image {VERSION} (x86_64) could not be made")


@ensure_deferred
async def test_what_was_made_is_found_at_the_next_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, digests = bench.open(), []
    for _ in range(2):
        templates = bench.start()
        with pytest.raises(Unavailable):
            templates.get_minimal_iso(base)
        await bench.told.until("is ready")
        digests.append(templates.get_minimal_iso(base).sha256)
        await templates.stop()
        monkeypatch.setenv("PATH", "/nowhere")  # nothing can be made any more
    assert digests[0] == digests[1]


@pytest.mark.parametrize("change", ["base", "nmstatectl", "maker", "file", "sidecar"])
@ensure_deferred
async def test_what_was_made_of_another_is_made_anew(
    change: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, templates = bench.open(openshift="4.17"), bench.start()
    templates.prepare(base)
    await bench.told.until("is ready")
    await templates.stop()
    first = (bench.data_dir / MINIMAL_ISO).stat().st_ino
    if change == "base":
        base = attrs.evolve(base, sha256="12" * 32)
    elif change == "nmstatectl":
        base = attrs.evolve(base, needs_nmstate=True)
    elif change == "maker":
        monkeypatch.setattr(derived_files, "DERIVATION_VERSION", DERIVATION_VERSION + 1)
    elif change == "file":
        (bench.data_dir / MINIMAL_ISO).write_bytes(b"")
    else:
        (bench.data_dir / f"{MINIMAL_ISO}.json").unlink()
    templates = bench.start()
    with (bench.data_dir / MINIMAL_ISO).open("rb"):  # or the new file might get the number of the old one
        templates.prepare(base)
        await bench.told.until(f"{MINIMAL_ISO_NAME} is ready")
    assert templates.get_minimal_iso(base).layout.ramdisk
    assert (bench.data_dir / MINIMAL_ISO).stat().st_ino != first


@ensure_deferred
async def test_what_was_made_of_another_does_not_take_the_room_of_the_new_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as what assisted-image-service leaves under this name."""
    (bench.data_dir / MINIMAL_ISO).write_bytes(b"of another service")
    monkeypatch.setenv("PATH", "/nowhere")
    bench.start().prepare(bench.open(openshift="4.17"))
    await bench.told.until("could not be made")
    assert bench.names() == set()


@ensure_deferred
async def test_a_failure_is_told_for_a_while_and_then_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, templates = bench.open(), bench.start()
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "/nowhere")
    templates.prepare(base)
    await bench.told.until("is ready")  # which needs no program
    await bench.told.until("could not be made: xorriso is not installed")
    monkeypatch.setenv("PATH", path)

    for passed, left in ((0, 60), (RETRY_SECONDS - 0.5, 1)):
        bench.clock.advance(passed)
        with pytest.raises(Unavailable, match="could not be made: xorriso is not installed") as refusal:
            templates.get_minimal_iso(base)
        assert refusal.value.retry_after_seconds == left
    bench.clock.advance(0.5)
    with pytest.raises(Unavailable, match="is being made"):
        templates.get_minimal_iso(base)
    await bench.told.until("is ready")
    assert templates.get_minimal_iso(base).layout.ramdisk


@ensure_deferred
async def test_a_base_that_cannot_be_used_is_refused_with_the_reason(bench: Bench) -> None:
    base, templates = bench.open(), bench.start()
    files = attrs.evolve(base.layout.files, rootfs=None)
    base = attrs.evolve(base, layout=attrs.evolve(base.layout, files=files))
    templates.prepare(base)
    for _ in range(2):
        await bench.told.until("could not be made")
    for take in (templates.get_nmstate_image, templates.get_minimal_iso):
        with pytest.raises(Unavailable, match="has no rootfs to take nmstatectl from"):
            take(base)
    assert bench.names() == set()


@ensure_deferred
async def test_a_fault_of_ours_harms_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, logged_failures: LoggedFailures
) -> None:
    def read_nmstatectl(*_: object) -> bytes:
        raise KeyError

    monkeypatch.setattr(derived_files, "read_nmstatectl", read_nmstatectl)
    base, templates = bench.open(), bench.start()
    with pytest.raises(Unavailable):
        templates.get_nmstate_image(base)
    await bench.told.until("could not be made: making it met a fault of this service")
    assert len(logged_failures.flush(KeyError)) == 1
    assert bench.names() == set()


@ensure_deferred
async def test_one_is_made_at_a_time(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = f"mkdir {tmp_path}/lock || exit 9"
    fake_xorriso(tmp_path, monkeypatch, f'{lock}; "{needs_client("xorriso")}" "$@"; rmdir {tmp_path}/lock')
    templates = bench.start()
    for version in "abc":
        templates.prepare(attrs.evolve(bench.open(openshift="4.17"), version=version))
    for _ in range(3):
        await bench.told.until("is ready")


@ensure_deferred
async def test_the_start_of_another_process_harms_nothing(bench: Bench) -> None:
    with scratch_directory(bench.data_dir) as directory:
        bench.start()
        assert bench.names() == {directory.name}


# Waiting for it.


@ensure_deferred
async def test_who_waits_is_told_when_all_is_there(bench: Bench) -> None:
    base, templates = bench.open(), bench.start()
    derived = templates.derive(base)
    assert derived is not None
    await derived
    assert templates.get_nmstate_image(base).sha256
    assert templates.get_minimal_iso(base).layout.ramdisk
    assert templates.derive(base) is None


@ensure_deferred
async def test_nobody_waits_for_what_no_image_needs(bench: Bench) -> None:
    assert bench.start().derive(attrs.evolve(bench.open(), disconnected=True)) is None


@ensure_deferred
async def test_who_waits_is_told_what_could_not_be_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, templates = bench.open(openshift="4.17"), bench.start()
    monkeypatch.setenv("PATH", "/nowhere")
    derived = templates.derive(base)
    assert derived is not None
    with pytest.raises(Unavailable, match="xorriso is not installed") as refusal:
        await derived
    assert refusal.value.retry_after_seconds == RETRY_SECONDS


@ensure_deferred
async def test_who_waits_at_the_end_is_interrupted(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, templates = bench.open(openshift="4.17"), bench.start()
    os.mkfifo(tmp_path / "started")
    fake_xorriso(tmp_path, monkeypatch, f"echo $$ >{tmp_path}/started; exec sleep 1000")
    derived = templates.derive(base)
    assert derived is not None
    waiting: Deferred[None] = Deferred.fromCoroutine(derived)
    (tmp_path / "started").read_text()
    await templates.stop()
    with pytest.raises(Interrupted):
        await waiting


@ensure_deferred
async def test_what_is_derived_is_closed_with_the_last_reference_to_it_and_its_base(bench: Bench) -> None:
    templates = bench.start()
    bases = [attrs.evolve(base := bench.open(), file=attrs.evolve(base.file))]  # ours alone
    derived = templates.derive(bases[0])
    assert derived is not None
    await derived
    del derived
    reader = [templates.get_minimal_iso(bases[0])]
    descriptors = [reader[0].file.descriptor, templates.get_nmstate_image(bases[0]).file.descriptor]
    bases.clear()
    while is_open(descriptors[1]):  # until the thread that made it has let go of it, too
        await deferLater(bench.reactor, 0.001)
        gc.collect()
    assert is_open(descriptors[0])
    reader.clear()
    while is_open(descriptors[0]):
        await deferLater(bench.reactor, 0.001)
        gc.collect()


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


# The end.


@ensure_deferred
async def test_it_does_not_matter_when_the_base_is_closed(bench: Bench) -> None:
    base, templates = bench.open(), bench.start()
    templates.prepare(base)
    os.close(bench.opened.pop())
    await bench.told.until("is ready")
    await bench.told.until("is ready")
    template = templates.get_minimal_iso(base)
    assert len(os.pread(template.file.descriptor, template.file.size, 0)) == template.file.size


@ensure_deferred
async def test_stop_ends_what_is_going_on_and_leaves_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, templates = bench.open(openshift="4.17"), bench.start()
    before = open_files()
    os.mkfifo(tmp_path / "started")
    fake_xorriso(tmp_path, monkeypatch, f"echo $$ >{tmp_path}/started; exec sleep 1000")
    templates.prepare(base)
    templates.prepare(attrs.evolve(base, version="waits for its turn"))
    process = int((tmp_path / "started").read_text())
    await templates.stop()

    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert bench.names() == set()
    assert open_files() == before
    assert sum("is left for the next start" in line for line in bench.told.lines) == 2
    with pytest.raises(Unavailable, match="this service stops"):
        templates.get_minimal_iso(base)
    await templates.stop()


@ensure_deferred
async def test_stop_closes_every_file(bench: Bench) -> None:
    base, templates = bench.open(), bench.start()
    before = open_files()
    templates.prepare(base)
    await bench.told.until("is ready")
    await bench.told.until("is ready")
    await templates.stop()
    assert open_files() == before
    with pytest.raises(Unavailable, match="this service stops"):
        templates.get_nmstate_image(base)


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))

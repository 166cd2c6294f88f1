from __future__ import annotations

import gc
import gzip
import hashlib
import os
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.task import Clock, deferLater
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import implementer

from image_service.common.concurrency.interruption import Interrupted
from image_service.common.files.atomic import scratch_directory
from image_service.core.errors import Unavailable
from image_service.server.catalog.derived import derived_files
from image_service.server.catalog.derived.derivation import DERIVATION_VERSION
from image_service.server.catalog.derived.derived_images import RETRY_SECONDS, DerivedImages
from image_service.server.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from tests.acceptance.clients import needs_client
from tests.core.formats.filesystems.file_systems import OSTREE_FILES, cpio, erofs_fixture
from tests.core.formats.reading import fixture
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.catalog import full_isos, mastered
from tests.server.catalog.fake_xorriso import fake_xorriso
from tests.server.catalog.full_isos import VERSION, open_iso

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.logger import LogEvent

    from image_service.core.images.base_image import BaseImage
    from tests.conftest import LoggedFailures

NMSTATECTL = next(content for name, content in OSTREE_FILES.items() if name.endswith("/nmstatectl"))
ROOTFS = cpio(("root.squashfs", erofs_fixture("fragments")))
MINIMAL_ISO = f"rhcos-derived-minimal-iso-{VERSION}-x86_64.iso"
MINIMAL_ISO_NAME = f"the minimal ISO of the base image {VERSION} (x86_64)"
NMSTATE = f"rhcos-nmstate-{VERSION}-x86_64.img"


def start_deriving(derived_images: DerivedImages, base: BaseImage) -> None:
    """Start to derive what images of a base need, and do not wait for it."""
    waiting = derived_images.derive(base)
    if waiting is not None:
        waiting.close()


@implementer(ILogObserver)
@attrs.define(eq=False)
class LogLines:
    """The lines of the log, for a test to wait for."""

    reactor: EPollReactor
    lines: list[str] = attrs.field(factory=list)
    _unread: DeferredQueue[str] = attrs.field(factory=DeferredQueue)

    def __call__(self, event: LogEvent) -> None:
        """Record a line."""
        self.lines.append(formatEvent(event))
        self._unread.put(self.lines[-1])

    async def until(self, text: str) -> None:
        """Wait for a line with this text; another failure ends the test instead of the wait."""
        line = ""
        while text not in line:
            assert "could not be derived" not in line, line
            line = await self._unread.get()
        await deferLater(self.reactor, 0.0)  # the line is logged before its operation ends


@attrs.frozen
class Derivations:
    """Starts derived images over one directory, and stops them after the test.

    Args:
        iso: a full ISO.
        log: the log.
    """

    reactor: EPollReactor
    clock: Clock
    iso: Path
    data_dir: Path
    log: LogLines
    started: list[DerivedImages]
    opened: list[int]

    def start(self) -> DerivedImages:
        """Start as the service does."""
        derived_images = DerivedImages(self.reactor, self.clock, DataDir(self.data_dir))
        self.started.append(derived_images)
        return derived_images

    def open(self, path: Path | None = None, openshift: str = "4.19") -> BaseImage:
        """Open a base image."""
        base = open_iso(path or self.iso, openshift=openshift)
        self.opened.append(base.file.descriptor)
        return base

    def names(self) -> set[str]:
        """Return the files other than manifest and locks."""
        return {path.name for path in self.data_dir.iterdir()} - {LOCKS, MANIFEST}


@pytest.fixture(scope="module")
def iso(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full ISO whose rootfs has nmstatectl."""
    path: Path = tmp_path_factory.mktemp("isos") / "full.iso"
    full_isos.x86_64(path, ROOTFS)
    return path


@pytest.fixture
def log(reactor: EPollReactor) -> Iterator[LogLines]:
    """Observe the log."""
    observer = LogLines(reactor)
    globalLogPublisher.addObserver(observer)
    yield observer
    globalLogPublisher.removeObserver(observer)


@async_fixture
async def derivations(
    reactor: EPollReactor, log: LogLines, iso: Path, tmp_path: Path
) -> AsyncIterator[Derivations]:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    derivations = Derivations(reactor, Clock(), iso, data_dir, log, [], [])
    yield derivations
    for derived_images in derivations.started:
        await derived_images.stop()
    for descriptor in derivations.opened:
        os.close(descriptor)


@ensure_deferred
async def test_minimal_iso_is_unavailable_until_it_is_derived(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    for _ in range(2):
        with pytest.raises(Unavailable, match=re.escape(f"{MINIMAL_ISO_NAME} is being derived")) as refusal:
            derived_images.get_minimal_iso(base)
        assert refusal.value.retry_after_seconds == 5
    await derivations.log.until("is ready")
    template = derived_images.get_minimal_iso(base)

    image = os.pread(template.file.descriptor, template.file.size, 0)
    assert template.sha256 == hashlib.sha256(image).hexdigest()
    assert template.coreos.ramdisk
    assert template.iso.files.rootfs is None
    assert (template.version, template.architecture) == (base.version, base.architecture)
    archive = mastered.files(image)["IMAGES/NMSTATE.IMG"].read(image)
    assert NMSTATECTL in gzip.decompress(archive)
    assert sum("is being derived" in line for line in derivations.log.lines) == 1


@ensure_deferred
async def test_derive_makes_initrd_and_minimal_iso(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    start_deriving(derived_images, base)
    await derivations.log.until("the initrd with nmstatectl of")
    await derivations.log.until("the minimal ISO of")
    await derivations.log.until("is ready")
    await derivations.log.until("is ready")

    nmstate = derived_images.get_nmstate_image(base)
    archive = os.pread(nmstate.file.descriptor, nmstate.file.size, 0)
    assert NMSTATECTL in gzip.decompress(archive)
    assert nmstate.sha256 == hashlib.sha256(archive).hexdigest()
    assert derived_images.get_minimal_iso(base).coreos.customized is None
    made = {MINIMAL_ISO, NMSTATE}
    assert derivations.names() == made | {f"{name}.json" for name in made}


@ensure_deferred
async def test_base_that_has_nmstatectl_gets_a_minimal_iso_only(derivations: Derivations) -> None:
    base, derived_images = derivations.open(openshift="4.17"), derivations.start()
    start_deriving(derived_images, base)
    await derivations.log.until("is ready")
    template = derived_images.get_minimal_iso(base)
    image = os.pread(template.file.descriptor, template.file.size, 0)
    assert "IMAGES/NMSTATE.IMG" not in mastered.files(image)
    assert NMSTATE not in derivations.names()


@ensure_deferred
async def test_derive_makes_nothing_that_is_not_needed(derivations: Derivations, tmp_path: Path) -> None:
    path = tmp_path / "miniso.iso"
    path.write_bytes(fixture("embed-areas-2022-02.iso"))
    with_recipe = derivations.open(path, openshift="4.17")
    assert with_recipe.coreos.minimal
    derived_images = derivations.start()
    start_deriving(derived_images, with_recipe)
    start_deriving(derived_images, attrs.evolve(derivations.open(openshift="4.17"), architecture="s390x"))
    start_deriving(derived_images, attrs.evolve(derivations.open(), disconnected=True))
    assert derivations.log.lines == []
    start_deriving(derived_images, attrs.evolve(derivations.open(), architecture="s390x"))
    await derivations.log.until("is ready")
    assert [line for line in derivations.log.lines if "minimal" in line] == []


@ensure_deferred
async def test_minimal_iso_with_nmstatectl_is_derived_despite_a_recipe(
    derivations: Derivations, tmp_path: Path
) -> None:
    path = tmp_path / "miniso.iso"
    path.write_bytes(fixture("embed-areas-2022-02.iso"))
    start_deriving(derivations.start(), derivations.open(path, openshift="4.19"))
    for kind in ("the initrd with nmstatectl of", "the minimal ISO of"):  # its rootfs is a line of text
        await derivations.log.until(f"{kind} the base image {VERSION} (x86_64) could not be derived")


@ensure_deferred
async def test_derived_files_are_found_at_the_next_start(
    derivations: Derivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, digests = derivations.open(), []
    for _ in range(2):
        derived_images = derivations.start()
        with pytest.raises(Unavailable):
            derived_images.get_minimal_iso(base)
        await derivations.log.until("is ready")
        digests.append(derived_images.get_minimal_iso(base).sha256)
        await derived_images.stop()
        monkeypatch.setenv("PATH", "/nowhere")  # nothing can be made any more
    assert digests[0] == digests[1]


@pytest.mark.parametrize("change", ["base", "nmstatectl", "maker", "file", "sidecar"])
@ensure_deferred
async def test_file_derived_from_something_else_is_derived_again(
    change: str, derivations: Derivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, derived_images = derivations.open(openshift="4.17"), derivations.start()
    start_deriving(derived_images, base)
    await derivations.log.until("is ready")
    await derived_images.stop()
    first = (derivations.data_dir / MINIMAL_ISO).stat().st_ino
    if change == "base":
        base = attrs.evolve(base, sha256="12" * 32)
    elif change == "nmstatectl":
        base = attrs.evolve(base, needs_nmstate=True)
    elif change == "maker":
        monkeypatch.setattr(derived_files, "DERIVATION_VERSION", DERIVATION_VERSION + 1)
    elif change == "file":
        (derivations.data_dir / MINIMAL_ISO).write_bytes(b"")
    else:
        (derivations.data_dir / f"{MINIMAL_ISO}.json").unlink()
    derived_images = derivations.start()
    with (derivations.data_dir / MINIMAL_ISO).open(
        "rb"
    ):  # or the new file might get the number of the old one
        start_deriving(derived_images, base)
        await derivations.log.until(f"{MINIMAL_ISO_NAME} is ready")
    assert derived_images.get_minimal_iso(base).coreos.ramdisk
    assert (derivations.data_dir / MINIMAL_ISO).stat().st_ino != first


@ensure_deferred
async def test_outdated_file_is_removed_before_the_new_one_is_made(
    derivations: Derivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as what assisted-image-service leaves under this name."""
    (derivations.data_dir / MINIMAL_ISO).write_bytes(b"of another service")
    monkeypatch.setenv("PATH", "/nowhere")
    start_deriving(derivations.start(), derivations.open(openshift="4.17"))
    await derivations.log.until("could not be derived")
    assert derivations.names() == set()


@ensure_deferred
async def test_failure_is_reported_until_the_retry(
    derivations: Derivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, derived_images = derivations.open(), derivations.start()
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", "/nowhere")
    start_deriving(derived_images, base)
    await derivations.log.until("is ready")  # which needs no program
    await derivations.log.until("could not be derived: xorriso is not installed")
    monkeypatch.setenv("PATH", path)

    for passed, left in ((0, 60), (RETRY_SECONDS - 0.5, 1)):
        derivations.clock.advance(passed)
        with pytest.raises(Unavailable, match="could not be derived: xorriso is not installed") as refusal:
            derived_images.get_minimal_iso(base)
        assert refusal.value.retry_after_seconds == left
    derivations.clock.advance(0.5)
    with pytest.raises(Unavailable, match="is being derived"):
        derived_images.get_minimal_iso(base)
    await derivations.log.until("is ready")
    assert derived_images.get_minimal_iso(base).coreos.ramdisk


@ensure_deferred
async def test_base_without_rootfs_is_reported(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    files = attrs.evolve(base.iso.files, rootfs=None)
    base = attrs.evolve(base, iso=attrs.evolve(base.iso, files=files))
    start_deriving(derived_images, base)
    for _ in range(2):
        await derivations.log.until("could not be derived")
    for take in (derived_images.get_nmstate_image, derived_images.get_minimal_iso):
        with pytest.raises(Unavailable, match="has no rootfs to take nmstatectl from"):
            take(base)
    assert derivations.names() == set()


@ensure_deferred
async def test_unexpected_error_is_logged_and_reported(
    derivations: Derivations, monkeypatch: pytest.MonkeyPatch, logged_failures: LoggedFailures
) -> None:
    def read_nmstatectl(*_: object) -> bytes:
        raise KeyError

    monkeypatch.setattr(derived_files, "read_nmstatectl", read_nmstatectl)
    base, derived_images = derivations.open(), derivations.start()
    with pytest.raises(Unavailable):
        derived_images.get_nmstate_image(base)
    await derivations.log.until("could not be derived: unexpected error; see the log")
    assert len(logged_failures.flush(KeyError)) == 1
    assert derivations.names() == set()


@ensure_deferred
async def test_one_file_is_derived_at_a_time(
    derivations: Derivations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = f"mkdir {tmp_path}/lock || exit 9"
    fake_xorriso(tmp_path, monkeypatch, f'{lock}; "{needs_client("xorriso")}" "$@"; rmdir {tmp_path}/lock')
    derived_images = derivations.start()
    for version in "abc":
        start_deriving(derived_images, attrs.evolve(derivations.open(openshift="4.17"), version=version))
    for _ in range(3):
        await derivations.log.until("is ready")


@ensure_deferred
async def test_start_leaves_scratch_files_of_other_processes(derivations: Derivations) -> None:
    with scratch_directory(derivations.data_dir) as directory:
        derivations.start()
        assert derivations.names() == {directory.name}


# Waiting.


@ensure_deferred
async def test_derive_waits_until_all_is_there(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    derived = derived_images.derive(base)
    assert derived is not None
    await derived
    assert derived_images.get_nmstate_image(base).sha256
    assert derived_images.get_minimal_iso(base).coreos.ramdisk
    assert derived_images.derive(base) is None


@ensure_deferred
async def test_derive_returns_none_if_nothing_is_needed(derivations: Derivations) -> None:
    assert derivations.start().derive(attrs.evolve(derivations.open(), disconnected=True)) is None


@ensure_deferred
async def test_derive_raises_the_reasons_of_all_that_is_missing(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    files = attrs.evolve(base.iso.files, rootfs=None)
    derived = derived_images.derive(attrs.evolve(base, iso=attrs.evolve(base.iso, files=files)))
    assert derived is not None
    with pytest.raises(Unavailable, match=r"^the initrd with nmstatectl of .*; the minimal ISO of "):
        await derived


@ensure_deferred
async def test_derive_raises_the_reason_of_a_failure(
    derivations: Derivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, derived_images = derivations.open(openshift="4.17"), derivations.start()
    monkeypatch.setenv("PATH", "/nowhere")
    derived = derived_images.derive(base)
    assert derived is not None
    with pytest.raises(Unavailable, match="xorriso is not installed") as refusal:
        await derived
    assert refusal.value.retry_after_seconds == RETRY_SECONDS


@ensure_deferred
async def test_derive_is_interrupted_by_stop(
    derivations: Derivations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, derived_images = derivations.open(openshift="4.17"), derivations.start()
    os.mkfifo(tmp_path / "started")
    fake_xorriso(tmp_path, monkeypatch, f"echo $$ >{tmp_path}/started; exec sleep 1000")
    derived = derived_images.derive(base)
    assert derived is not None
    waiting: Deferred[None] = Deferred.fromCoroutine(derived)
    (tmp_path / "started").read_text()
    await derived_images.stop()
    with pytest.raises(Interrupted):
        await waiting


@ensure_deferred
async def test_derived_file_is_closed_with_its_last_reference(derivations: Derivations) -> None:
    derived_images = derivations.start()
    bases = [attrs.evolve(base := derivations.open(), file=copy(base.file))]  # ours alone
    derived = derived_images.derive(bases[0])
    assert derived is not None
    await derived
    del derived
    reader = [derived_images.get_minimal_iso(bases[0])]
    descriptors = [reader[0].file.descriptor, derived_images.get_nmstate_image(bases[0]).file.descriptor]
    bases.clear()
    while is_open(descriptors[1]):  # until its thread drops its reference
        await deferLater(derivations.reactor, 0.001)
        gc.collect()
    assert is_open(descriptors[0])
    reader.clear()
    while is_open(descriptors[0]):
        await deferLater(derivations.reactor, 0.001)
        gc.collect()


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


# Stopping.


@ensure_deferred
async def test_base_may_be_closed_during_the_derivation(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    start_deriving(derived_images, base)
    os.close(derivations.opened.pop())
    await derivations.log.until("is ready")
    await derivations.log.until("is ready")
    template = derived_images.get_minimal_iso(base)
    assert len(os.pread(template.file.descriptor, template.file.size, 0)) == template.file.size


@ensure_deferred
async def test_stop_kills_xorriso_and_leaves_nothing(
    derivations: Derivations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, derived_images = derivations.open(openshift="4.17"), derivations.start()
    before = open_files()
    os.mkfifo(tmp_path / "started")
    fake_xorriso(tmp_path, monkeypatch, f"echo $$ >{tmp_path}/started; exec sleep 1000")
    start_deriving(derived_images, base)
    start_deriving(derived_images, attrs.evolve(base, version="queued"))
    process = int((tmp_path / "started").read_text())
    await derived_images.stop()

    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert derivations.names() == set()
    assert open_files() == before
    assert sum("is not derived: the service is stopping" in line for line in derivations.log.lines) == 2
    with pytest.raises(Unavailable, match="the service is stopping"):
        derived_images.get_minimal_iso(base)
    await derived_images.stop()


@ensure_deferred
async def test_stop_closes_every_file_that_was_derived(derivations: Derivations) -> None:
    base, derived_images = derivations.open(), derivations.start()
    before = open_files()
    start_deriving(derived_images, base)
    await derivations.log.until("is ready")
    await derivations.log.until("is ready")
    await derived_images.stop()
    assert open_files() == before
    with pytest.raises(Unavailable, match="the service is stopping"):
        derived_images.get_nmstate_image(base)


def open_files() -> int:
    """Return the number of open descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))

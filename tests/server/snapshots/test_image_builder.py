"""The image builder: which base, which canvas, which name; and what it takes from assisted-service."""

from __future__ import annotations

import bz2
import gzip
import lzma
from contextlib import ExitStack
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred

from image_service.core.errors import (
    KernelArgumentsTooLarge,
    NotFound,
    Unavailable,
    UnknownBaseImage,
)
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.newc import write_archive
from image_service.core.images.base_image import NmstateImage
from image_service.core.images.customization import Customization
from image_service.core.images.layouts import newest_layout
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import ArtifactRef, BootArtifact, ImageRef, Kind, Reader
from image_service.server.http.problem import status_of
from image_service.server.snapshots.image_builder import THREAD_BYTES, ImageBuilder
from image_service.server.snapshots.versions import ComposedVersion, ImageRequest
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.formats.filesystems.iso_builder import (
    IGNITION_LENGTH,
    KERNEL_ARGUMENTS,
    build_live_iso,
    live_files,
)
from tests.core.images.building import base_file, base_image, bytes_of
from tests.core.images.expected_isos import (
    DEFAULT,
    RAMDISK_LENGTH,
    archive,
    expected_derived_minimal,
    template,
)
from tests.server.snapshots.doubles import (
    BASE_URL,
    CONFIG,
    ID,
    MODIFIED,
    TTL_SECONDS,
    FakeCatalog,
    FakeDerivedFiles,
    ManualThreads,
    World,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage

FULL, MINIMAL, DISCONNECTED = Kind.FULL_ISO, Kind.MINIMAL_ISO, Kind.DISCONNECTED_ISO
INITRD, ADDRSIZE = Kind.PXE_INITRD, Kind.INITRD_ADDRSIZE
# The aliases by which requests name the base images.
WITH_RECIPE, WITHOUT_RECIPE, NEEDS_NMSTATE, ONLY_DISCONNECTED = "4.17", "4.10", "4.18", "4.19"
BUILD = "9.6.20250523-0"
ISO = live_iso_with_minimal()
PLAIN_ISO = build_live_iso()
S390X_ISO = build_live_iso(
    {**live_files(), "images/initrd.addrsize": bytes(range(16)), "generic.ins": b"* minimal lpar ins file\n"}
)
TEMPLATE = template()
RAMDISK = b"\x1f\x8bramdisk"
NMSTATE = b"\x1f\x8bnmstatectl"


@attrs.define(eq=False)
class Workbench:
    """An image builder, and what it composes from."""

    catalog: FakeCatalog
    derived: FakeDerivedFiles
    threads: ManualThreads
    template: BaseImage
    nmstate: NmstateImage
    builder: ImageBuilder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.builder = ImageBuilder(self.catalog, self.derived, self.threads.run, lambda: BASE_URL)

    def compose(self, ref: ImageRef, customization: Customization) -> list[BootImage | BaseException]:
        """Where the image or the exception will be."""
        base = self.builder.find_base(ref)
        made: list[BootImage | BaseException] = []
        making = Deferred.fromCoroutine(self.builder.build(ref, base, customization, newest_layout()))
        making.addCallbacks(made.append, lambda failure: made.append(failure.value))
        return made

    def build(self, ref: ImageRef, customization: Customization) -> BootImage:
        """The image, made at once."""
        composed = self.compose(ref, customization)
        self.threads.work()
        (made,) = composed
        if isinstance(made, BaseException):
            raise made
        return made

    def has_templates(self) -> None:
        """Let everything derived be there."""
        self.derived.iso, self.derived.archive = self.template, self.nmstate


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with ExitStack() as files:

        def base(iso: bytes, architecture: str = "x86_64", *, needs_nmstate: bool = False) -> BaseImage:
            made = base_image(iso, version=BUILD, architecture=architecture, needs_nmstate=needs_nmstate)
            return files.enter_context(made)

        images = {
            (WITH_RECIPE, "x86_64", FULL): base(ISO),
            (WITHOUT_RECIPE, "x86_64", FULL): base(PLAIN_ISO),
            (NEEDS_NMSTATE, "x86_64", FULL): base(ISO, needs_nmstate=True),
            (NEEDS_NMSTATE, "s390x", FULL): base(S390X_ISO, "s390x", needs_nmstate=True),
            (ONLY_DISCONNECTED, "x86_64", DISCONNECTED): attrs.evolve(base(PLAIN_ISO), disconnected=True),
        }
        archived = files.enter_context(base_file(NMSTATE))
        nmstate = NmstateImage(archived, sha256(NMSTATE).hexdigest())
        yield Workbench(FakeCatalog(images), FakeDerivedFiles(), ManualThreads(), base(TEMPLATE), nmstate)


def ref_of(kind: Kind, version: str = WITH_RECIPE, architecture: str = "x86_64") -> ImageRef:
    return ImageRef(ID, version, architecture, kind)


def customization(ramdisk: bytes | None = None, *arguments: str, config: bytes = CONFIG) -> Customization:
    operations = tuple(KernelArgument(Operation.APPEND, argument) for argument in arguments)
    return Customization(config, operations, MODIFIED, ramdisk)


def rootfs_argument(architecture: str = "x86_64") -> str:
    return f"coreos.live.rootfs_url={BASE_URL}/boot-artifacts/{BUILD}/{architecture}/rootfs.img"


# Which base.


@pytest.mark.parametrize("kind", [FULL, MINIMAL, INITRD, ADDRSIZE])
def test_all_kinds_but_the_disconnected_use_the_full_iso(bench: Workbench, kind: Kind) -> None:
    found = bench.builder.find_base(ref_of(kind))
    assert found is bench.catalog.images[WITH_RECIPE, "x86_64", FULL]
    with pytest.raises(UnknownBaseImage):
        bench.builder.find_base(ref_of(kind, ONLY_DISCONNECTED))
    with pytest.raises(UnknownBaseImage):
        bench.builder.find_base(ref_of(kind, architecture="aarch64"))


def test_disconnected_iso_has_its_own_base(bench: Workbench) -> None:
    assert bench.builder.find_base(ref_of(DISCONNECTED, ONLY_DISCONNECTED)).disconnected
    with pytest.raises(UnknownBaseImage):
        bench.builder.find_base(ref_of(DISCONNECTED))


def test_minimal_iso_for_s390x_is_refused_with_a_reason(bench: Workbench) -> None:
    with pytest.raises(NotFound, match=r"no minimal-iso for s390x, which .* ask for full-iso"):
        bench.builder.find_base(ref_of(MINIMAL, NEEDS_NMSTATE, "s390x"))
    assert not bench.catalog.asked
    assert bench.builder.find_base(ref_of(FULL, NEEDS_NMSTATE, "s390x")).architecture == "s390x"


@pytest.mark.parametrize(
    "ref",
    [
        ImageRef(ID, None, "x86_64", FULL),
        ImageRef(ID, WITH_RECIPE, None, FULL),
        ImageRef(ID, WITH_RECIPE, "x86_64", None),
    ],
)
def test_incomplete_reference_has_no_base(bench: Workbench, ref: ImageRef) -> None:
    with pytest.raises(NotFound, match="names no version"):
        bench.builder.find_base(ref)


# Which canvas.


def test_full_iso_is_the_base_with_its_customization(bench: Workbench) -> None:
    image = bench.build(ref_of(FULL), customization(None, "quiet"))
    assert image.size == len(ISO)
    assert f"{KERNEL_ARGUMENTS} quiet\n".encode() in bytes_of(image)


def test_minimal_iso_is_spliced_if_the_base_has_a_recipe(bench: Workbench) -> None:
    """Not a template is asked for. The URL has the OS build, whatever the request called it."""
    for ramdisk in (None, RAMDISK):
        image = bench.build(ref_of(MINIMAL), customization(ramdisk, "quiet"))
        assert f"{DEFAULT} {rootfs_argument()} quiet\n".encode() in bytes_of(image)
        assert (RAMDISK in bytes_of(image)) is (ramdisk is not None)
        assert WITH_RECIPE.encode() not in bytes_of(image)


def test_minimal_iso_without_a_recipe_is_derived(bench: Workbench) -> None:
    bench.has_templates()
    for ramdisk in (None, RAMDISK):
        image = bench.build(ref_of(MINIMAL, WITHOUT_RECIPE), customization(ramdisk))
        area = (ramdisk or b"").ljust(RAMDISK_LENGTH, b"\0")
        assert bytes_of(image) == expected_derived_minimal(
            f"{DEFAULT} {rootfs_argument()}", archive(CONFIG), area
        )


def test_minimal_iso_that_needs_nmstatectl_is_derived(bench: Workbench) -> None:
    bench.has_templates()
    image = bench.build(ref_of(MINIMAL, NEEDS_NMSTATE), customization(RAMDISK))
    assert image.size == len(TEMPLATE)
    assert RAMDISK in bytes_of(image)


def test_nmstatectl_is_not_added_without_a_ramdisk(bench: Workbench) -> None:
    image = bench.build(ref_of(MINIMAL, NEEDS_NMSTATE), customization())
    assert bytes_of(image) == bytes_of(bench.build(ref_of(MINIMAL), customization()))


@pytest.mark.parametrize(
    ("length", "derived"), [(IGNITION_LENGTH // 2, False), (IGNITION_LENGTH, True), (RAMDISK_LENGTH, True)]
)
def test_ramdisk_too_large_to_splice_uses_a_derived_iso(
    bench: Workbench, length: int, *, derived: bool
) -> None:
    bench.has_templates()
    image = bench.build(ref_of(MINIMAL), customization(length * b"r"))
    assert (image.size == len(TEMPLATE)) is derived
    assert length * b"r" in bytes_of(image)


def test_ramdisk_too_large_for_the_derived_iso_moves_behind_it(bench: Workbench) -> None:
    bench.has_templates()
    ramdisk = gzip.compress(b"") + bytes(RAMDISK_LENGTH)
    for version in (WITH_RECIPE, WITHOUT_RECIPE, NEEDS_NMSTATE):
        made = bench.build(ref_of(MINIMAL, version), customization(ramdisk))
        assert made.extents.read_at(made.areas[-1].start, 2).startswith(b"\x1f\x8b")
        assert made.size > bench.template.file.size + RAMDISK_LENGTH


def test_other_oversized_content_moves_in_a_thread_and_needs_no_derived_iso(bench: Workbench) -> None:
    for content in (
        customization(RAMDISK, "x" * 1500),
        customization(RAMDISK, config=incompressible(IGNITION_LENGTH)),
    ):
        composed = bench.compose(ref_of(MINIMAL), content)
        assert composed == []
        bench.threads.work()
        (made,) = composed
        assert not isinstance(made, BaseException)
        assert made.size > IGNITION_LENGTH


def test_more_arguments_than_a_kernel_reads_are_refused(bench: Workbench) -> None:
    with pytest.raises(KernelArgumentsTooLarge, match="cannot move in the base image"):
        bench.build(ref_of(MINIMAL), customization(RAMDISK, "x" * 2048))


@pytest.mark.parametrize(
    ("ramdisk", "doubts"),
    [
        (gzip.compress(write_archive([])), 0),
        (bz2.compress(write_archive([])), 1),
        (write_archive([]).replace(b"070701", b"070702"), 1),
        (lzma.compress(write_archive([])), 1),  # stored before ramdisks were checked
        (None, 0),
    ],
)
@pytest.mark.parametrize("kind", [MINIMAL, INITRD])
def test_image_has_the_doubts_about_its_ramdisk(
    bench: Workbench, kind: Kind, ramdisk: bytes | None, doubts: int
) -> None:
    image = bench.build(ref_of(kind), customization(ramdisk))
    assert len(image.doubts) == doubts
    assert all(doubt.startswith("the machine may lack files: ") for doubt in image.doubts)


def incompressible(length: int) -> bytes:
    blocks = (sha256(b"%d" % number).digest() for number in range(length // 32 + 1))
    return (b"{" + b"".join(blocks))[:length]  # a config of CoreOS begins so


@pytest.mark.parametrize(
    ("version", "ramdisk"),
    [(WITHOUT_RECIPE, None), (NEEDS_NMSTATE, RAMDISK), (WITH_RECIPE, bytes(IGNITION_LENGTH))],
)
def test_minimal_iso_is_unavailable_while_being_derived(
    bench: Workbench, version: str, ramdisk: bytes | None
) -> None:
    with pytest.raises(Unavailable, match="being made") as caught:
        bench.build(ref_of(MINIMAL, version), customization(ramdisk))
    assert (status_of(caught.value), caught.value.retry_after_seconds) == (503, 5)
    bench.has_templates()
    assert bench.build(ref_of(MINIMAL, version), customization(ramdisk)).size == len(TEMPLATE)


# Initrds and what belongs to them.


def test_initrd_has_nmstatectl_if_a_ramdisk_needs_it(bench: Workbench) -> None:
    bench.has_templates()
    for version, architecture, ramdisk, expected in (
        (WITH_RECIPE, "x86_64", RAMDISK, False),
        (NEEDS_NMSTATE, "x86_64", RAMDISK, True),
        (NEEDS_NMSTATE, "s390x", RAMDISK, True),
        (NEEDS_NMSTATE, "x86_64", None, False),
        (NEEDS_NMSTATE, "x86_64", b"", False),
    ):
        made = bytes_of(bench.build(ref_of(INITRD, version, architecture), customization(ramdisk)))
        assert (NMSTATE in made) is expected
        assert (RAMDISK in made) is bool(ramdisk)
        assert made.startswith(b"initrd data\n")


def test_initrd_is_unavailable_while_nmstatectl_is_read(bench: Workbench) -> None:
    with pytest.raises(Unavailable, match="being read"):
        bench.build(ref_of(INITRD, NEEDS_NMSTATE), customization(RAMDISK))
    assert bench.build(ref_of(INITRD, NEEDS_NMSTATE), customization()).size


def test_addrsize_has_the_size_of_the_served_initrd(bench: Workbench) -> None:
    ref = ref_of(ADDRSIZE, NEEDS_NMSTATE, "s390x")
    base = bench.builder.find_base(ref)
    initrd = bench.build(ref_of(INITRD, NEEDS_NMSTATE, "s390x"), customization())
    addrsize = bench.builder.build_initrd_addrsize(ref, base, initrd, newest_layout())
    assert bytes_of(addrsize) == bytes(range(8)) + initrd.size.to_bytes(8, "big")


def test_boot_artifact_is_the_file_of_the_base(bench: Workbench) -> None:
    ref = ArtifactRef(BootArtifact.ROOTFS, NEEDS_NMSTATE, "x86_64")
    base = bench.builder.find_base(ref)
    assert base is bench.catalog.images[NEEDS_NMSTATE, "x86_64", FULL]
    assert bytes_of(compose_artifact(base, ref.artifact)) == b"rootfs data\n"
    with pytest.raises(NotFound, match=r"has no generic\.ins"):
        compose_artifact(base, BootArtifact.INS_FILE)


# What a download is called.


@pytest.mark.parametrize(
    ("kind", "version", "name"),
    [
        (FULL, WITH_RECIPE, f"{ID}-discovery.iso"),
        (MINIMAL, WITH_RECIPE, f"{ID}-discovery.iso"),
        (MINIMAL, WITHOUT_RECIPE, f"{ID}-discovery.iso"),
        (DISCONNECTED, ONLY_DISCONNECTED, "agent-ove.x86_64.iso"),
        (INITRD, WITH_RECIPE, f"{ID}-initrd.img"),
    ],
)
def test_download_has_the_contracts_file_name(bench: Workbench, kind: Kind, version: str, name: str) -> None:
    bench.has_templates()
    assert bench.build(ref_of(kind, version), customization()).file_name == name


def test_addrsize_has_the_contracts_file_name(bench: Workbench) -> None:
    ref = ref_of(ADDRSIZE, NEEDS_NMSTATE, "s390x")
    initrd = bench.build(ref_of(INITRD), customization())
    addrsize = bench.builder.build_initrd_addrsize(ref, bench.builder.find_base(ref), initrd, newest_layout())
    assert addrsize.file_name == f"{ID}-initrd.addrsize"


# What takes a while is done elsewhere.


@pytest.mark.parametrize("version", [WITH_RECIPE, WITHOUT_RECIPE])
@pytest.mark.parametrize("kind", [FULL, MINIMAL])
def test_large_config_is_composed_in_a_thread(bench: Workbench, version: str, kind: Kind) -> None:
    bench.has_templates()
    ref = ref_of(kind, version)
    assert bench.compose(ref, customization(config=incompressible(THREAD_BYTES)))
    made = bench.compose(ref, customization(config=incompressible(THREAD_BYTES + 1)))
    assert (made, len(bench.threads.waiting)) == ([], 1)
    bench.threads.work()
    assert not isinstance(made[0], BaseException)


def test_oversized_ramdisk_found_in_a_thread_uses_a_derived_iso(bench: Workbench) -> None:
    bench.has_templates()
    config = incompressible(THREAD_BYTES + 1)
    made = bench.compose(ref_of(MINIMAL), customization(bytes(IGNITION_LENGTH), config=config))
    for _ in range(3):
        waiting, bench.threads.waiting = bench.threads.waiting, []
        ManualThreads(waiting).work()
    (image,) = made
    assert not isinstance(image, BaseException)
    assert image.size == len(TEMPLATE)


# Together with those who keep what assisted-service says.


@pytest.fixture
def world(bench: Workbench) -> World:
    bench.has_templates()
    return World(bench.catalog, derived=bench.derived)


def get(world: World, ref: ImageRef | ArtifactRef) -> BootImage:
    found: list[ComposedVersion | BaseException] = []
    asked = world.images.get(ImageRequest(Reader("192.0.2.1", None, ref)))
    asked.addCallbacks(found.append, lambda failure: found.append(failure.value))
    world.threads.work()
    (composed,) = found
    if isinstance(composed, BaseException):
        raise composed
    return composed.representation.image


@pytest.mark.parametrize(
    ("ref", "questions"),
    [
        (ref_of(FULL), ["ignition", "infra-env"]),
        (ref_of(MINIMAL), ["ignition", "infra-env", "ramdisk"]),
        (ref_of(DISCONNECTED, ONLY_DISCONNECTED), ["ignition", "infra-env"]),
        (ref_of(INITRD), ["ignition", "ramdisk"]),
        (ref_of(ADDRSIZE, NEEDS_NMSTATE, "s390x"), ["ignition", "ramdisk"]),
        (ArtifactRef(BootArtifact.ROOTFS, WITH_RECIPE, "x86_64"), []),
    ],
)
def test_upstream_is_asked_what_the_contract_says_only(
    world: World, ref: ImageRef | ArtifactRef, questions: list[str]
) -> None:
    get(world, ref)
    assert sorted(world.assisted.asked) == questions
    assert {call[2] for call in world.assisted.calls if call[0] == "ignition"} <= {
        ref.kind if isinstance(ref, ImageRef) and ref.kind in {FULL, MINIMAL, DISCONNECTED} else None
    }


def test_upstream_is_not_asked_for_an_unknown_image(world: World) -> None:
    for ref in (
        ref_of(MINIMAL, NEEDS_NMSTATE, "s390x"),
        ref_of(MINIMAL, ONLY_DISCONNECTED),
        ref_of(FULL, "9.99"),
        ref_of(INITRD, ONLY_DISCONNECTED),
    ):
        with pytest.raises(NotFound):
            get(world, ref)
    assert world.assisted.calls == []


@pytest.mark.parametrize("first", [INITRD, ADDRSIZE])
def test_addrsize_and_initrd_are_of_one_snapshot(world: World, first: Kind) -> None:
    """It may sign a token of another length into each: the size of another initrd would end the boot."""
    refs = {kind: ref_of(kind, NEEDS_NMSTATE, "s390x") for kind in (INITRD, ADDRSIZE)}
    world.assisted.initrd = RAMDISK
    for extra in range(3):
        get(world, refs[first])
        world.assisted.config = CONFIG + b" " * 4 * extra
        initrd, addrsize = (bytes_of(get(world, refs[kind])) for kind in (INITRD, ADDRSIZE))
        assert int.from_bytes(addrsize[8:], "big") == len(initrd)
        assert sorted(world.assisted.asked) == ["ignition", "ramdisk"]
        assert RAMDISK in initrd
        assert NMSTATE in initrd
        world.assisted.calls.clear()
        world.clock.advance(TTL_SECONDS + 1)

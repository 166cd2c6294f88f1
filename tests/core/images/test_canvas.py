"""Canvases, and images composed on them, compared with coreos-installer and with expected ISOs."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service.core.errors import (
    BaseImageError,
    KernelArgumentInvalid,
    KernelArgumentsTooLarge,
)
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.families.coreos.minimal_iso import CopiedFile, Piece
from image_service.core.images.canvas import derived_minimal_canvas, full_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.server.http.problem import status_of
from tests.acceptance.clients import needs_client, run_client
from tests.core.families.coreos.miniso_builder import (
    MINISO,
    ROOM,
    add_minimal_iso,
    files_in_both,
    live_iso_with_minimal,
    minimal_files,
    pack_minimal_iso,
)
from tests.core.formats.filesystems.iso_builder import (
    CREATED,
    KARGS_FILES,
    VOLUME_ID,
    build_iso,
    build_live_iso,
    live_files,
)
from tests.core.formats.reading import FIXTURES, fixture, read_layout, reader
from tests.core.images.building import CONFIG, base_image, bytes_of
from tests.core.images.expected_isos import (
    DEFAULT,
    ROOTFS_URL,
    URL_ARGUMENT,
    archive,
    expected_derived_minimal,
    expected_spliced_minimal,
    template,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.canvas import Canvas

ISO = live_iso_with_minimal()
TEMPLATE = template()
MODIFIED = CREATED.replace(year=CREATED.year + 1)
GOLDEN: Mapping[str, Any] = (
    json.loads((FIXTURES / "golden.json").read_text())["iso"] if FIXTURES.exists() else {}
)
EXTRACTED = "extract minimal-iso"
EXTRACTED_WITH_URL = f"{EXTRACTED} --rootfs-url {ROOTFS_URL}"
REAL = [name for name, golden in GOLDEN.items() if EXTRACTED in golden]


@pytest.fixture
def base() -> Iterator[BaseImage]:
    with base_image(ISO) as image:
        yield image


@pytest.fixture
def canvas(base: BaseImage) -> Canvas:
    return spliced_minimal_canvas(base, ROOTFS_URL)


@pytest.fixture
def derived(base: BaseImage) -> Iterator[Canvas]:
    with base_image(TEMPLATE, version="template") as made:
        yield derived_minimal_canvas(base, made, ROOTFS_URL)


def append(value: str) -> KernelArgument:
    return KernelArgument(Operation.APPEND, value)


def delete(value: str) -> KernelArgument:
    return KernelArgument(Operation.DELETE, value)


def replace(value: str) -> KernelArgument:
    return KernelArgument(Operation.REPLACE, value)


def composed(canvas: Canvas, *arguments: KernelArgument) -> bytes:
    return bytes_of(compose(canvas, Customization(CONFIG, arguments, MODIFIED), "x.iso"))


def without_config(canvas: Canvas, image: bytes) -> bytes:
    """Return an image with an empty Ignition area, which coreos-installer fills by another command."""
    area = canvas.ignition
    return image[: area.offset] + bytes(area.length) + image[area.offset + area.length :]


# Compared with coreos-installer


@pytest.mark.parametrize("name", REAL)
def test_real_spliced_iso_equals_that_of_coreos_installer(name: str) -> None:
    with base_image(fixture(name)) as base:
        canvas = spliced_minimal_canvas(base, ROOTFS_URL)
        assert canvas.kernel_arguments is not None
        without_url = attrs.evolve(canvas, arguments=canvas.kernel_arguments.default)
        for variant, golden in ((canvas, EXTRACTED_WITH_URL), (without_url, EXTRACTED)):
            made = without_config(canvas, composed(variant))
            assert len(made) == GOLDEN[name][golden]["size"]
            assert sha256(made).hexdigest() == GOLDEN[name][golden]["sha256"]


OPERATIONS = (
    append("quiet"),
    append('x="a b"'),
    delete("ignition.firstboot"),
    replace("ignition.platform.id=metal=qemu"),
)
EDITED = f'ignition.platform.id=qemu {URL_ARGUMENT} quiet x="a b"'


@pytest.mark.parametrize("arguments", [(), OPERATIONS])
@pytest.mark.parametrize("name", ["", *REAL])
def test_coreos_installer_makes_and_edits_the_same_iso(
    name: str, arguments: tuple[KernelArgument, ...], tmp_path: Path
) -> None:
    """For a real ISO, and for the one that the tests build."""
    needs_client("coreos-installer")
    iso = fixture(name) if name else ISO
    full, expected, served = (tmp_path / f"{word}.iso" for word in ("full", "expected", "served"))
    full.write_bytes(iso)
    installer = "coreos-installer", "iso"
    run_client(*installer, "extract", "minimal-iso", "--rootfs-url", ROOTFS_URL, full, expected)
    if arguments:
        options = [f"--{argument.operation.value}={argument.value}" for argument in arguments]
        run_client(*installer, "kargs", "modify", *options, expected)
    with base_image(iso) as base:
        canvas = spliced_minimal_canvas(base, ROOTFS_URL)
        served.write_bytes(composed(canvas, *arguments))
    assert without_config(canvas, served.read_bytes()) == expected.read_bytes()
    assert run_client(*installer, "ignition", "show", served) == CONFIG


# Compared with expected ISOs


def test_spliced_iso_has_the_rootfs_url_instead_of_liveiso(canvas: Canvas) -> None:
    image = composed(canvas)
    assert image == expected_spliced_minimal(f"{DEFAULT} {URL_ARGUMENT}", archive(CONFIG))
    assert image.count(f"{DEFAULT} {URL_ARGUMENT}\n#".encode()) == len(KARGS_FILES)
    assert b"liveiso" not in image
    assert b"rootfs data" not in image


def test_kargs_json_of_the_spliced_iso_describes_its_areas(canvas: Canvas) -> None:
    iso = read_layout(composed(canvas))
    kargs = iso.kernel_arguments
    assert kargs is not None
    assert kargs == canvas.kernel_arguments
    assert (kargs.default, [area.name for area in kargs.areas]) == (DEFAULT, [*KARGS_FILES])
    assert (iso.ignition, iso.volume_id, iso.created) == (canvas.ignition, VOLUME_ID, CREATED)
    assert (iso.files.rootfs, iso.minimal) == (None, None)


def test_spliced_iso_is_smaller_by_its_rootfs() -> None:
    rootfs = bytes(range(1, 256)) * 20_000
    with base_image(live_iso_with_minimal(rootfs)) as base:
        canvas = spliced_minimal_canvas(base, ROOTFS_URL)
        assert composed(canvas) == expected_spliced_minimal(f"{DEFAULT} {URL_ARGUMENT}", archive(CONFIG))
        assert canvas.extents.literal_bytes < 32 * 1024, "all else stays on the disk, or is zero"


def test_areas_are_sorted_where_the_recipe_reorders_files(base: BaseImage) -> None:
    minimal = base.coreos.minimal
    assert minimal is not None
    pieces: list[Piece] = []
    position = 0
    for piece in reversed(minimal.pieces):
        pieces.append(attrs.evolve(piece, minimal=position) if isinstance(piece, CopiedFile) else piece)
        position += len(bytes(piece)) if isinstance(piece, int | bytes) else piece.length
    iso = attrs.evolve(base.coreos, minimal=attrs.evolve(minimal, pieces=tuple(pieces)))
    canvas = spliced_minimal_canvas(attrs.evolve(base, iso=iso), ROOTFS_URL)
    kargs, image = canvas.kernel_arguments, composed(canvas)
    assert kargs is not None
    assert [area.name for area in kargs.areas] == [*reversed(KARGS_FILES)]
    assert kargs.areas[0].offset < kargs.areas[1].offset
    assert kargs.read(reader(image)) == f"{DEFAULT} {URL_ARGUMENT}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((append("quiet"),), f"{DEFAULT} {URL_ARGUMENT} quiet"),
        (OPERATIONS, EDITED),
        ((delete(DEFAULT),), URL_ARGUMENT),
        ((delete(URL_ARGUMENT),), DEFAULT),
        ((delete("absent"), replace("ignition.platform.id=a=b")), f"{DEFAULT} {URL_ARGUMENT}"),
    ],
)
def test_kernel_arguments_start_from_default_and_url(
    canvas: Canvas, derived: Canvas, arguments: tuple[KernelArgument, ...], expected: str
) -> None:
    ignition = archive(CONFIG)
    assert composed(canvas, *arguments) == expected_spliced_minimal(expected, ignition)
    assert composed(derived, *arguments) == expected_derived_minimal(expected, ignition, bytes(2**20))


@pytest.mark.parametrize("name", ["canvas", "derived"])
def test_url_counts_towards_the_size_of_arguments(name: str, request: pytest.FixtureRequest) -> None:
    canvas: Canvas = request.getfixturevalue(name)
    assert canvas.kernel_arguments is not None
    size = canvas.kernel_arguments.size
    room = size - len(f"{DEFAULT} {URL_ARGUMENT} ") - len("\n")
    assert b" " + b"x" * room + b"\n# COREOS" in composed(canvas, append("x" * room))
    assert len(composed(canvas, append("x" * (room + 1)))) > canvas.extents.size, "they have moved"
    with pytest.raises(KernelArgumentsTooLarge, match=f"take 2048 bytes.* hold {size - 1}.*move") as caught:
        composed(canvas, append("x" * (room + 2049 - size)))
    assert status_of(caught.value) == 422


def test_oversized_url_is_refused(base: BaseImage) -> None:
    canvas = spliced_minimal_canvas(base, f"https://example.com/{2048 * 'x'}")
    with pytest.raises(KernelArgumentsTooLarge):
        composed(canvas)


@pytest.mark.parametrize("url", ["https://example.com/a&b", "https://example.com/a b;c", "https://ä.example"])
def test_url_that_a_boot_loader_would_change_is_refused(base: BaseImage, url: str) -> None:
    with pytest.raises(KernelArgumentInvalid):
        spliced_minimal_canvas(base, url)


# Derived minimal ISOs


def test_derived_iso_is_customized_like_any_other(derived: Canvas) -> None:
    image = composed(derived)
    assert image == expected_derived_minimal(f"{DEFAULT} {URL_ARGUMENT}", archive(CONFIG), bytes(2**20))


def test_derived_iso_has_its_own_etag_and_the_date_of_its_base(base: BaseImage) -> None:
    later = CREATED.replace(year=CREATED.year + 9)
    with base_image(TEMPLATE, version="template") as made:
        redated = attrs.evolve(made, iso=attrs.evolve(made.iso, created=later))
        canvas = derived_minimal_canvas(base, redated, ROOTFS_URL)
        assert (canvas.created, canvas.identity) == (CREATED, sha256(TEMPLATE).hexdigest())
        assert canvas.name == base.name


# Validators


def etag(canvas: Canvas, *arguments: KernelArgument) -> str:
    return compose(canvas, Customization(CONFIG, arguments, MODIFIED), "x.iso").etag


def test_every_canvas_of_a_base_has_another_etag(base: BaseImage, derived: Canvas) -> None:
    canvases = [
        full_canvas(base),
        spliced_minimal_canvas(base, ROOTFS_URL),
        spliced_minimal_canvas(base, f"{ROOTFS_URL}x"),
        spliced_minimal_canvas(attrs.evolve(base, sha256="0" * 64), ROOTFS_URL),
        derived,
    ]
    assert len({etag(canvas) for canvas in canvases}) == len(canvases)


# A mount outlives a rolling update: if one of these changes, there must be a new layout (see
# images/layouts.py). The digest of the base is
# synthetic: the real one depends on the library that packed its recipe.
GOLDEN_IMAGES = [
    (
        (),
        None,
        '"4b950fec442161c57d0f7551a6b443b5a7302344"',
        "2ebe6037aad290dd9289c688116808de7e8bc91770135fdfb144562a9eeda735",
    ),
    (
        (append("quiet"),),
        None,
        '"68da40e35deefea51b12cc94456ec11450f2ea17"',
        "ec549c3d9c8052918bd2da47281bc270aa69f73a7fc8175e8a3d3051f78b59be",
    ),
    (
        OPERATIONS,
        b"\x1f\x8bramdisk",
        '"e913c98c3a0c15f313023a87822655c9dfe74638"',
        "5d8efaa6487a6453e1dbf1cebf6c930feabdddd52c1fb64bef4b34fc4eb7c63b",
    ),
]


@pytest.mark.parametrize(("arguments", "ramdisk", "etag", "digest"), GOLDEN_IMAGES)
def test_bytes_and_etag_are_golden(
    base: BaseImage,
    arguments: tuple[KernelArgument, ...],
    ramdisk: bytes | None,
    etag: str,
    digest: str,
) -> None:
    canvas = spliced_minimal_canvas(attrs.evolve(base, sha256="0" * 64), ROOTFS_URL)
    customization = Customization(CONFIG, arguments, MODIFIED, ramdisk)
    image = compose(canvas, customization, "x.iso")
    assert (image.etag, sha256(bytes_of(image)).hexdigest()) == (etag, digest)


def test_same_inputs_make_the_same_image() -> None:
    images = []
    for _ in range(2):
        with base_image(ISO) as base:
            canvas = spliced_minimal_canvas(base, ROOTFS_URL)
            images.append((etag(canvas, *OPERATIONS), composed(canvas, *OPERATIONS)))
    assert images[0] == images[1]


# Bases without a minimal ISO


def without(name: str) -> dict[str, bytes]:
    return {path: content for path, content in live_files().items() if path != name}


def iso_with_recipe_without(path: str) -> bytes:
    """Return an ISO whose recipe has one file among the literal bytes."""
    room = {**live_files(), MINISO: bytes(ROOM)}
    full, minimal = build_iso(room), build_iso(left := minimal_files(live_files()))
    both = files_in_both(full, minimal, [name for name in left if name != path])
    return build_iso({**room, MINISO: pack_minimal_iso(full, minimal, both).ljust(ROOM, b"\0")})


COMPACT_KARGS = json.dumps(json.loads(live_files()["coreos/kargs.json"])).encode()
UNUSABLE = [
    (build_live_iso(), "has no coreos/miniso.dat"),
    (add_minimal_iso(without("coreos/kargs.json")), "no embed areas for kernel arguments"),
    (add_minimal_iso(live_files(kernel_arguments="quiet liveiso=x")), "do not contain coreos.liveiso="),
    (add_minimal_iso({**live_files(), "coreos/kargs.json": COMPACT_KARGS}), "kargs.json needs"),
    (iso_with_recipe_without("images/ignition.img"), "262144 bytes at offset"),
    (iso_with_recipe_without("isolinux/isolinux.cfg"), "lacks the full one's"),
    (iso_with_recipe_without("coreos/kargs.json"), "lacks the full one's"),
]


@pytest.mark.parametrize(("iso", "reason"), UNUSABLE, ids=[reason for _, reason in UNUSABLE])
def test_base_without_usable_recipe_is_refused_with_the_reason(iso: bytes, reason: str) -> None:
    with base_image(iso) as base, pytest.raises(BaseImageError, match=reason):
        spliced_minimal_canvas(base, ROOTFS_URL)

from __future__ import annotations

import gzip
import hashlib
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.families.coreos.rootfs import nmstate_archive, read_nmstatectl
from image_service.core.formats.initrd import read_members
from image_service.core.formats.newc import read_archive
from image_service.core.formats.reading import Span
from tests.core.formats.filesystems.file_systems import (
    DEPLOYMENT,
    NMSTATECTL,
    OSTREE_FILES,
    cpio,
    erofs_fixture,
    executable,
    make_erofs,
    make_squashfs,
    noise,
    patched,
    write_tree,
)
from tests.core.formats.reading import MeteredReader
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Damageable: TypeAlias = tuple[bytes, list[range]]
"""An image, and where its structures are."""

BEFORE = bytes(2048 * 5)  # bytes before rootfs.img in the image
PROGRAM = OSTREE_FILES[f"{DEPLOYMENT}/{NMSTATECTL}"]
OTHER = noise(300_000)  # a file that is not on the path
MIB = 1024 * 1024


def read(rootfs: bytes, limit: int = 10 * MIB) -> bytes:
    """Read nmstatectl from a rootfs.img inside an image."""
    image = MeteredReader(BEFORE + rootfs + b"behind", limit)
    return read_nmstatectl(image, Span("images/pxeboot/rootfs.img", len(BEFORE), len(rootfs)))


@pytest.mark.parametrize("name", ["fragments", "all-fragments"])
def test_nmstatectl_is_read_from_the_layout_of_coreos(name: str) -> None:
    rootfs = cpio(("root.erofs", erofs_fixture(name)), ("etc/coreos-live-rootfs", b"42"))
    assert rootfs.index(erofs_fixture(name)) == 124
    assert read(rootfs) == PROGRAM


@pytest.mark.parametrize("options", ["-comp gzip", "-comp xz", "-comp zstd"])
def test_nmstatectl_is_read_from_squashfs(ostree: Path, options: str) -> None:
    image = make_squashfs(ostree, options)
    assert read(cpio(("root.squashfs", image)), limit=len(OTHER)) == PROGRAM


@pytest.mark.parametrize("options", ["", "-zlz4", "-zlz4hc -C65536"])
def test_nmstatectl_is_read_from_erofs(ostree: Path, options: str) -> None:
    image = make_erofs(ostree, options)
    assert read(cpio(("root.erofs", image)), limit=len(OTHER)) == PROGRAM


@pytest.mark.slow
@pytest.mark.parametrize("make", [soaked(make_squashfs), make_erofs])
def test_program_of_real_size_is_read(tmp_path: Path, make: Callable[[Path, str], bytes]) -> None:
    program = executable(30 * MIB)
    tree = write_tree(tmp_path / "tree", {f"{DEPLOYMENT}/{NMSTATECTL}": program})
    image = make(tree, "-comp zstd" if make is make_squashfs else "-zlz4 -C65536")
    found = read(cpio(("root", b""), ("root.squashfs", image)), limit=len(image) + 100_000)
    assert hashlib.sha256(found).digest() == hashlib.sha256(program).digest()


@pytest.mark.parametrize(
    "rootfs",
    [
        cpio(("root.erofs", erofs_fixture("fragments")), name_length=3870),
        cpio(("etc/osmet", b"osmet"), ("root.erofs", erofs_fixture("fragments"))),
        cpio(("root.squashfs", erofs_fixture("fragments"))),
    ],
    ids=["padded name", "later member", "other name"],
)
def test_file_system_is_found_in_the_archive(rootfs: bytes) -> None:
    assert read(rootfs) == PROGRAM


def test_root_is_searched_before_deployments(tmp_path: Path) -> None:
    assert read(erofs_of(tmp_path, {NMSTATECTL: b"at the root", **OSTREE_FILES})) == b"at the root"


def test_deployments_are_searched_in_order(tmp_path: Path) -> None:
    checksum = "0123456789abcdef" * 4
    files = {
        f"ostree/deploy/a/deploy/{checksum}.origin/{NMSTATECTL}": b"no deployment",
        f"ostree/deploy/a/deploy/{checksum}.1/usr/bin/other": b"no nmstatectl",
        "ostree/deploy/b/var/log": b"no deployments",
        "ostree/deploy/c": b"no directory",
        f"ostree/deploy/d/deploy/{checksum}.2/{NMSTATECTL}": b"second",
        f"ostree/deploy/d/deploy/{checksum}.1/{NMSTATECTL}": b"first",
    }
    assert read(erofs_of(tmp_path, files)) == b"first"


def test_number_of_searched_deployments_is_limited(tmp_path: Path) -> None:
    names = [f"{number:064x}.0" for number in range(5)]
    files = {f"ostree/deploy/rhcos/deploy/{name}/usr/bin/other": b"" for name in names}
    program = f"ostree/deploy/rhcos/deploy/{names[3]}/{NMSTATECTL}"
    assert read(erofs_of(tmp_path / "fourth", {**files, program: b"program"})) == b"program"
    with pytest.raises(FileNotInImage):
        read(erofs_of(tmp_path / "fifth", {**files, program.replace(names[3], names[4]): b"program"}))


def test_symlinks_on_the_path_are_followed(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {"usr/lib/nmstate/ctl": b"program", f"{DEPLOYMENT}/x": b""})
    (tree / "usr/bin").symlink_to("sbin")
    (tree / "usr/sbin").mkdir()
    (tree / "usr/sbin/nmstatectl").symlink_to("../lib/nmstate/ctl")
    assert read(cpio(("root.erofs", make_erofs(tree, "")))) == b"program"


def test_archive_without_file_system_is_file_not_in_image() -> None:
    with pytest.raises(
        FileNotInImage, match=r"images/pxeboot/rootfs.img contains neither root.squashfs nor root.erofs"
    ):
        read(cpio(("TRAILER!!!", b"")))


def test_root_without_nmstatectl_is_file_not_in_image(tmp_path: Path) -> None:
    with pytest.raises(FileNotInImage, match=r"no usr/bin/nmstatectl in images/pxeboot/rootfs.img, neither"):
        read(erofs_of(tmp_path, {"usr/bin/other": b""}))


@pytest.mark.parametrize(
    ("rootfs", "message"),
    [
        (b"", "ends too soon|no cpio header"),
        (gzip.compress(b"archive").ljust(200, b"\0"), "no cpio header"),
        (cpio(("root.squashfs", b"ext4" * 1000)), "root.squashfs is neither squashfs nor erofs"),
        (cpio(("root.erofs", b"short")), "refers to 4 bytes at offset 1024"),
        (cpio(("root.squashfs", b"hsqs")), "refers to 96 bytes at offset 0"),
    ],
)
def test_unknown_root_file_system_is_refused(rootfs: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(rootfs)


def test_directory_in_place_of_the_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nmstatectl .* is not a regular file of at most .*: mode 40755"):
        read(erofs_of(tmp_path, {f"{NMSTATECTL}/file": b""}))


def test_oversized_program_is_refused_unread(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/bin").mkdir(parents=True)
    with (tree / NMSTATECTL).open("wb") as file:
        file.truncate(128 * MIB + 1)
    with pytest.raises(FormatError, match="134217728 bytes: mode 100644, 134217729 bytes"):
        read(cpio(("root.squashfs", make_squashfs(tree, "-comp gzip"))), limit=10_000)


@given(data=st.data())
def test_damage_raises_format_errors_only(damageable: list[Damageable], data: st.DataObject) -> None:
    image, structures = data.draw(st.sampled_from(damageable))
    places = st.one_of([st.integers(part.start, part.stop - 1) for part in structures])
    for place, value in data.draw(st.lists(st.tuples(places, st.binary(min_size=1, max_size=4)), min_size=1)):
        image = patched(image, place, value)
    with suppress(FormatError):
        read(cpio(("root.erofs", image)))


@given(st.binary(max_size=300), st.sampled_from([b"hsqs", bytes(1024) + b"\xe2\xe1\xf5\xe0"]))
def test_random_bytes_raise_format_errors_only(content: bytes, start: bytes) -> None:
    with pytest.raises(FormatError):
        read(cpio(("root.squashfs", start + content)))


def test_archive_has_the_executable_and_its_directories() -> None:
    archive = nmstate_archive(b"program")
    members, _ = read_archive(gzip.decompress(archive))
    assert [(member.name, member.mode) for member in members] == [
        ("usr", stat.S_IFDIR | 0o755),
        ("usr/bin", stat.S_IFDIR | 0o755),
        (NMSTATECTL, 0o100755),
    ]
    assert read_members(archive)[NMSTATECTL].data == b"program"


def test_archive_has_golden_bytes() -> None:
    """RFC 1952's header and stored blocks, so replicas with other builds of zlib make the same archive."""
    program = executable(200_000)
    archive = nmstate_archive(program)
    assert archive.startswith(b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x00\xff\xff\x00\x00070701")
    assert len(archive) - len(program) < 1000
    assert gzip.decompress(archive).count(program) == 1


@pytest.fixture(scope="module")
def ostree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {**OSTREE_FILES, "ostree/repo/other": OTHER}
    return write_tree(tmp_path_factory.mktemp("rootfs") / "tree", files)


@pytest.fixture(scope="module")
def damageable(tmp_path_factory: pytest.TempPathFactory) -> list[Damageable]:
    tree = write_tree(tmp_path_factory.mktemp("rootfs") / "tree", {NMSTATECTL: executable(30_000)})
    packed = make_squashfs(tree, "-comp gzip -b 4096 -no-xattrs -nopad")
    plain = make_squashfs(tree, "-comp xz -b 4096 -no-xattrs -nopad -noI -always-use-fragments")
    lz4 = make_erofs(tree, "-zlz4 -x-1")
    kept = [erofs_fixture("fragments"), erofs_fixture("all-fragments")]
    return [
        *(
            (image, [range(96), range(int.from_bytes(image[64:72], "little"), len(image))])
            for image in (packed, plain)
        ),
        *((image, [range(1024, 4096), range(len(image) - 4096, len(image))]) for image in (lz4, *kept)),
    ]


def erofs_of(directory: Path, files: Mapping[str, bytes]) -> bytes:
    """Return a rootfs.img with an erofs of some files."""
    return cpio(("root.erofs", make_erofs(write_tree(directory / "tree", files), "")))

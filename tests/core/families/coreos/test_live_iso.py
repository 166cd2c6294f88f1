from __future__ import annotations

import json
import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from image_service.core.errors import FormatError
from image_service.core.families.coreos.family import MARKS
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.core.families.coreos.kargs_areas import KargsArea, KargsAreas
from image_service.core.families.coreos.live_iso import KargsJson, LiveIso, is_coreos, read_live_iso
from image_service.core.families.iso_layout import BootFiles
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.reading import Span
from tests.core.formats.filesystems.iso_builder import (
    CREATED,
    IGNITION_LENGTH,
    KARGS_FILES,
    KERNEL_ARGUMENTS,
    VOLUME_ID,
    build_iso,
    build_live_iso,
    build_other_iso,
    live_files,
    write_sparse_live_iso,
)
from tests.core.formats.reading import FIXTURES, fixture, read_layout, reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GRUB, ISOLINUX = KARGS_FILES
KARGS = "coreos/kargs.json"
IGNINFO = "coreos/igninfo.json"
GOLDEN: Mapping[str, Any] = (
    json.loads((FIXTURES / "golden.json").read_text())["iso"] if FIXTURES.exists() else {}
)


def find(image: bytes, path: str) -> Span:
    return read_iso9660(reader(image), len(image)).find_file(path)


def offset_of(image: bytes, path: str) -> int:
    return find(image, path).offset


def changed(path: str, **fields: object) -> dict[str, bytes]:
    """Return the files of a live ISO with some fields of a JSON file changed; ... deletes a field."""
    files = live_files()
    content = json.loads(files[path]) | fields
    files[path] = json.dumps({name: value for name, value in content.items() if value is not ...}).encode()
    return files


def with_kargs_file(**fields: object) -> dict[str, bytes]:
    """Return the files of a live ISO with the first area of kernel arguments changed."""
    first, *others = json.loads(live_files()[KARGS])["files"]
    return changed(KARGS, files=[first | fields, *others])


def with_header(image: bytes, size: int, default: int, areas: list[int], magic: bytes = b"coreKarg") -> bytes:
    header = struct.pack("<8sQQ6Q", magic, size, default, *[*areas, 0, 0, 0, 0, 0, 0][:6])
    return image[:32672] + header + image[32744:]


def legacy_image() -> tuple[bytes, int, list[int]]:
    """Return a live ISO whose kargs areas only the header lists, with their size and offsets."""
    files = live_files()
    kargs = json.loads(files.pop(KARGS))
    files[".cmdline"] = files[ISOLINUX][kargs["files"][1]["offset"] :][: kargs["size"]]
    image = build_live_iso(files)
    areas = [offset_of(image, file["path"]) + file["offset"] for file in kargs["files"]]
    image = with_header(image, kargs["size"], offset_of(image, ".cmdline"), areas)
    return image, kargs["size"], areas


def refusal(files: dict[str, bytes]) -> str:
    with pytest.raises(FormatError) as caught:
        read_layout(build_live_iso(files))
    return caught.value.detail


# Layouts


def test_layout_of_a_live_iso_is_read() -> None:
    files = live_files()
    image = build_live_iso(files)
    kargs = json.loads(files[KARGS])
    offsets = sorted(offset_of(image, file["path"]) + file["offset"] for file in kargs["files"])
    assert read_layout(image) == LiveIso(
        volume_id=VOLUME_ID,
        created=CREATED,
        size=len(image),
        ignition=Span("Ignition", offset_of(image, "images/ignition.img"), IGNITION_LENGTH),
        kernel_arguments=KargsAreas(
            default=KERNEL_ARGUMENTS,
            size=kargs["size"],
            areas=tuple(KargsArea(offset, b"#", b"\n") for offset in offsets),
        ),
        customized=None,
        kargs_json=KargsJson(offset_of(image, KARGS), files[KARGS]),
        files=BootFiles(
            kernel=find(image, "images/pxeboot/vmlinuz"),
            initrd=find(image, "images/pxeboot/initrd.img"),
            rootfs=find(image, "images/pxeboot/rootfs.img"),
        ),
        boot_loader=(
            Span("EFI/REDHAT/GRUB.CFG", offset_of(image, GRUB), len(files[GRUB])),
            Span("isolinux/ISOLINUX.CFG", offset_of(image, ISOLINUX), len(files[ISOLINUX])),
        ),
        no_minimal="the ISO has no coreos/miniso.dat",
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_real_images_have_their_golden_layout(name: str) -> None:
    image, golden = fixture(name), GOLDEN[name]
    assert (len(image), sha256(image).hexdigest()) == (golden["size"], golden["sha256"])
    layout = read_layout(image)
    assert [layout.ignition.offset, layout.ignition.length] == golden["ignition_area"]
    assert layout.size == golden["size"]
    assert layout.customized is None
    if "kargs" not in golden:
        assert layout.kernel_arguments is None
        return
    kargs = golden["kargs"]
    areas = sorted((offset, pad.encode(), end.encode()) for offset, pad, end in kargs["areas"])
    assert layout.kernel_arguments == KargsAreas(
        default=kargs["default"], size=kargs["size"], areas=tuple(KargsArea(*area) for area in areas)
    )


@pytest.mark.parametrize("name", [name for name, golden in GOLDEN.items() if "kargs" in golden])
def test_real_images_with_other_kernel_arguments_are_golden_too(name: str) -> None:
    image = bytearray(fixture(name))
    areas = read_layout(bytes(image)).kernel_arguments
    assert areas is not None
    arguments = [
        KernelArgument(Operation.APPEND, "foo=bar"),
        KernelArgument(Operation.APPEND, "baz"),
        KernelArgument(Operation.DELETE, "ignition.firstboot"),
        KernelArgument(Operation.REPLACE, "ignition.platform.id=metal=qemu"),
    ]
    edited = edit_arguments(areas.default, arguments)
    for area in areas.areas:
        rendered = area.render(edited, areas.size)
        image[area.offset : area.offset + areas.size] = rendered
    command = "kargs modify -a foo=bar -a baz -d ignition.firstboot -r ignition.platform.id=metal=qemu"
    assert sha256(image).hexdigest() == GOLDEN[name][command]
    assert "kernel arguments" in (read_layout(bytes(image)).customized or "")


def test_area_beyond_4_gib_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.iso"
    write_sparse_live_iso(path, ignition_offset=5 * 2**30)
    with path.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        layout = read_live_iso(read_at, path.stat().st_size)
    assert layout.ignition == Span("Ignition", 5 * 2**30, IGNITION_LENGTH)
    assert layout.customized is None


def test_ignition_image_is_the_area_without_igninfo() -> None:
    files = live_files()
    del files[IGNINFO]
    image = build_live_iso(files)
    assert read_layout(image).ignition == Span(
        "Ignition", offset_of(image, "images/ignition.img"), IGNITION_LENGTH
    )


@pytest.mark.parametrize(
    ("fields", "offset", "length"),
    [
        ({"offset": 100}, 100, IGNITION_LENGTH - 100),
        ({"length": 300}, 0, 300),
        ({"offset": 100, "length": 300}, 100, 300),
        ({"offset": None, "length": None}, 0, IGNITION_LENGTH),
        ({"offset": IGNITION_LENGTH - 1, "length": 1, "other": []}, IGNITION_LENGTH - 1, 1),
    ],
)
def test_igninfo_places_the_area_in_its_file(fields: dict[str, object], offset: int, length: int) -> None:
    image = build_live_iso(changed(IGNINFO, **fields))
    assert read_layout(image).ignition == Span(
        "Ignition", offset_of(image, "images/ignition.img") + offset, length
    )


def test_pad_and_end_are_read_per_file() -> None:
    files = live_files()
    kargs = json.loads(files[KARGS])
    kargs["files"][0] |= {"pad": "\0", "end": "\0"}
    offset = kargs["files"][0]["offset"]
    area = KERNEL_ARGUMENTS.encode().ljust(kargs["size"], b"\0")
    files[GRUB] = files[GRUB][:offset] + area + files[GRUB][offset + kargs["size"] :]
    files[KARGS] = json.dumps(kargs).encode()
    layout = read_layout(build_live_iso(files))
    assert layout.kernel_arguments is not None
    assert {(area.pad, area.end) for area in layout.kernel_arguments.areas} == {
        (b"\0", b"\0"),
        (b"#", b"\n"),
    }
    assert layout.customized is None


def test_image_without_kargs_areas_is_accepted() -> None:
    files = live_files()
    del files[KARGS]
    assert read_layout(build_live_iso(files)).kernel_arguments is None


def test_kargs_areas_are_read_from_the_header() -> None:
    image, size, areas = legacy_image()
    assert read_layout(image).kernel_arguments == KargsAreas(
        default=KERNEL_ARGUMENTS,
        size=size,
        areas=tuple(KargsArea(offset, b"#", b"\n") for offset in sorted(areas)),
    )
    assert read_layout(image).customized is None


def test_header_with_another_magic_is_ignored() -> None:
    image, size, areas = legacy_image()
    assert read_layout(with_header(image, size, 0, areas, magic=b"corekarg")).kernel_arguments is None


def test_kargs_json_is_preferred_to_the_karg_header() -> None:
    image = with_header(build_live_iso(), 1, 1, [1])
    assert read_layout(image) == read_layout(build_live_iso())


def test_default_with_surrounding_blanks_is_pristine() -> None:
    assert read_layout(build_live_iso(changed(KARGS, default=f" {KERNEL_ARGUMENTS}\n"))).customized is None


# Customized images


def test_used_ignition_area_is_customized() -> None:
    files = live_files() | {"images/ignition.img": bytes(IGNITION_LENGTH - 1) + b"\1"}
    layout = read_layout(build_live_iso(files))
    assert layout.customized == f"the Ignition area at offset {layout.ignition.offset} is not empty"


def test_other_kernel_arguments_are_customized() -> None:
    files = live_files()
    for path in KARGS_FILES:
        files[path] = files[path].replace(b"id=metal\n#####", b"id=metal a=b\n")
    customized = read_layout(build_live_iso(files)).customized or ""
    assert "kernel arguments" in customized
    assert "a=b" not in customized


def test_all_customizations_are_listed() -> None:
    files = live_files() | {"images/ignition.img": b"\1" * IGNITION_LENGTH}
    for path in KARGS_FILES:
        files[path] = files[path].replace(b"id=metal\n", b"id=other\n")
    customized = read_layout(build_live_iso(files)).customized or ""
    assert customized.startswith("the Ignition area at")
    assert " and the kernel arguments at" in customized


def test_blanks_around_the_arguments_are_ignored() -> None:
    files = live_files()
    files[GRUB] = files[GRUB].replace(b"id=metal\n##", b"id=metal \t\n")
    assert read_layout(build_live_iso(files)).customized is None


@pytest.mark.parametrize("size", [len(KERNEL_ARGUMENTS), 2048])
def test_smallest_and_largest_areas_are_accepted(size: int) -> None:
    area = KERNEL_ARGUMENTS.encode().ljust(size, b"#")
    file = {"path": GRUB, "offset": 0}
    layout = read_layout(build_live_iso(changed(KARGS, files=[file], size=size) | {GRUB: area}))
    assert layout.kernel_arguments is not None
    assert layout.kernel_arguments.size == size
    assert layout.customized is None


# Refusals


@pytest.mark.parametrize("volume_id", ["", "fedora-", "CoreOS", "xrhcos-9", "RHCOS-9"])
def test_volumes_of_other_systems_are_refused(volume_id: str) -> None:
    other = build_other_iso(volume_id)
    with pytest.raises(FormatError, match=r"rhcos-, fedora-coreos-, scos-") as caught:
        read_layout(other)
    assert repr(volume_id) in caught.value.detail
    assert "coreos/igninfo.json, coreos/kargs.json" in caught.value.detail
    assert not is_coreos(reader(other), len(other))


@pytest.mark.parametrize(
    "volume_id",
    [
        "rhcos-9",
        "fedora-coreos-42",
        "scos-10",
        "coreos10-x86_64",
        "centos-10",
        "RHCOS-9",
        "CoreOS",
        "",
        "any",
    ],
)
def test_coreos_is_recognized_by_its_files_whatever_its_volume_is_called(volume_id: str) -> None:
    image = build_live_iso(volume_id=volume_id)
    assert is_coreos(reader(image), len(image))
    assert read_layout(image).volume_id == volume_id


@pytest.mark.parametrize("mark", [*MARKS])
def test_each_file_that_only_coreos_has_shows_it(mark: str) -> None:
    image = build_iso({mark: bytes(4096)}, volume_id="any")
    assert is_coreos(reader(image), len(image))


def test_iso_without_ignition_area_is_refused() -> None:
    files = live_files()
    del files[IGNINFO], files["images/ignition.img"]
    for volume_id in ("rhcos-9", "any"):
        with pytest.raises(FormatError) as caught:
            read_layout(build_live_iso(files, volume_id=volume_id))
        assert caught.value.detail == (
            f"volume {volume_id!r} has no area for an Ignition config: neither coreos/igninfo.json nor"
            " images/ignition.img is there"
        )


def test_invalid_igninfo_does_not_fall_back() -> None:
    assert "coreos/igninfo.json" in refusal(live_files() | {IGNINFO: b"{"})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"file": ...}, "'file'"),
        ({"file": 7}, "'file'"),
        ({"file": "\ud800"}, "'file'"),
        ({"file": "x" * 2049}, "'file'"),
        ({"file": "images/none.img"}, "images/none.img"),
        ({"file": "images"}, "'images'"),
        ({"offset": -1}, "'offset'"),
        ({"offset": 1.0}, "'offset'"),
        ({"offset": True}, "'offset'"),
        ({"offset": "1"}, "'offset'"),
        ({"offset": 2**63}, "'offset'"),
        ({"offset": 10**4000}, "'offset'"),
        ({"length": []}, "'length'"),
        ({"length": 0}, "1 to 67108864 bytes, not 0"),
        ({"offset": IGNITION_LENGTH}, "1 to 67108864 bytes, not 0"),
        (
            {"offset": IGNITION_LENGTH + 1},
            f"{IGNITION_LENGTH} bytes: -1 bytes at offset {IGNITION_LENGTH + 1}",
        ),
        ({"offset": 1, "length": IGNITION_LENGTH}, f"{IGNITION_LENGTH} bytes at offset 1"),
        ({"length": IGNITION_LENGTH + 1}, f"{IGNITION_LENGTH + 1} bytes at offset 0"),
    ],
)
def test_invalid_igninfo_is_refused_by_field(fields: dict[str, object], named: str) -> None:
    detail = refusal(changed(IGNINFO, **fields))
    assert named in detail
    assert "igninfo.json" in detail or "images" in detail


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"default": ...}, "'default'"),
        ({"default": 1}, "'default'"),
        ({"default": "x" * 1200}, "1200 bytes"),
        ({"default": "\udcff"}, "'default'"),
        ({"size": ...}, "'size'"),
        ({"size": False}, "'size'"),
        ({"size": 0}, "1 to 2048 bytes, not 0"),
        ({"size": 2049}, "1 to 2048 bytes, not 2049"),
        ({"files": ...}, "'files'"),
        ({"files": {}}, "'files'"),
        ({"files": []}, "'files'"),
        ({"files": [{}] * 17}, "'files'"),
        ({"files": ["a"]}, "files[0]"),
        ({"files": [{"path": GRUB}]}, "files[0]: 'offset'"),
        ({"files": [{"offset": 1}]}, "files[0]: 'path'"),
    ],
)
def test_invalid_kargs_json_is_refused_by_field(fields: dict[str, object], named: str) -> None:
    detail = refusal(changed(KARGS, **fields))
    assert "coreos/kargs.json" in detail
    assert named in detail


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"path": "none.cfg"}, "none.cfg"),
        ({"offset": 2**62}, f"offset {2**62}"),
        ({"offset": len(live_files()[GRUB]) - 100}, f"leaves {GRUB} of {len(live_files()[GRUB])} bytes"),
        ({"pad": "##"}, "'pad'"),
        ({"pad": ""}, "'pad'"),
        ({"end": "\u00e4"}, "'end'"),
        ({"end": 10}, "'end'"),
    ],
)
def test_invalid_area_is_refused_by_field(fields: dict[str, object], named: str) -> None:
    assert named in refusal(with_kargs_file(**fields))


@pytest.mark.parametrize("path", [KARGS, IGNINFO])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{\0}\0",
        b"\xef\xbb\xbf{}",
        b'{"size": ' + b"1" * 5000 + b"}",
        b"[" * 60000,
        b" " * 65536 + b"{}",
    ],
)
def test_files_without_json_object_are_refused_by_name(path: str, content: bytes) -> None:
    assert path in refusal(live_files() | {path: content})


def test_differing_kernel_arguments_are_refused_by_name() -> None:
    files = live_files()
    files[GRUB] = files[GRUB].replace(b"id=metal\n###", b"id=secret\n##")
    detail = refusal(files)
    assert GRUB in detail
    assert ISOLINUX in detail
    assert "secret" not in detail


def test_kernel_arguments_that_are_not_utf8_are_refused() -> None:
    files = live_files()
    files[GRUB] = files[GRUB].replace(b"id=metal", b"id=\xff\xff\xff\xff\xff")
    assert "not UTF-8" in refusal(files)


def test_overlapping_areas_are_refused_by_name() -> None:
    kargs = json.loads(live_files()[KARGS])
    first, second = kargs["files"]
    near = first | {"offset": first["offset"] - 1}
    detail = refusal(changed(KARGS, files=[first, near, second]))
    assert f"offset {offset_of(build_live_iso(), GRUB) + near['offset']} ({GRUB})" in detail
    assert "overlap" in detail


def test_adjacent_areas_are_accepted() -> None:
    files = live_files()
    kargs = json.loads(files[KARGS])
    first, second = kargs["files"]
    area = files[GRUB][first["offset"] :][: kargs["size"]]
    files[GRUB] = files[GRUB].replace(area, area * 2)
    after = first | {"offset": first["offset"] + kargs["size"]}
    files[KARGS] = json.dumps(kargs | {"files": [after, first, second]}).encode()
    layout = read_layout(build_live_iso(files))
    assert layout.kernel_arguments is not None
    assert len(layout.kernel_arguments.areas) == 3


def test_kernel_arguments_in_the_ignition_area_are_refused() -> None:
    area = {"path": "images/ignition.img", "offset": 0, "pad": "\0", "end": "\0"}
    detail = refusal(changed(KARGS, files=[area]))
    assert "overlap" in detail
    assert "Ignition" in detail


def test_ignition_area_in_a_boot_config_is_refused() -> None:
    assert "overlap" in refusal(changed(IGNINFO, file=GRUB))


@pytest.mark.parametrize(
    ("size", "default", "areas", "named"),
    [
        (2049, 0, [4096], "not 2049"),
        (0, 0, [4096], "not 0"),
        (2**64 - 1, 0, [4096], f"not {2**64 - 1}"),
        (100, 0, [], "no areas"),
        (100, 0, [2**64 - 1], f"offset {2**64 - 1}"),
        (100, 2**63, [4096], f"offset {2**63}"),
        (100, 0, [4096, 4195], "overlap"),
    ],
)
def test_invalid_header_is_refused(size: int, default: int, areas: list[int], named: str) -> None:
    files = live_files()
    del files[KARGS]
    image = with_header(build_live_iso(files), size, default, areas)
    with pytest.raises(FormatError) as caught:
        read_layout(image)
    assert named in caught.value.detail


def test_header_with_differing_areas_is_refused() -> None:
    image, size, areas = legacy_image()
    image = with_header(
        image, size, offset_of(image, ".cmdline"), [*areas, offset_of(image, "images/ignition.img") - size]
    )
    with pytest.raises(FormatError, match="32672"):
        read_layout(image)

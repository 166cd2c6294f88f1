from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.ova import OvaLayout, is_old_tar, read_ova
from tests.core.formats.reading import reader


def make_tar(
    members: list[tuple[str, bytes]],
    *,
    form: int = tarfile.USTAR_FORMAT,
    attributes: dict[str, str] | None = None,
) -> bytes:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=form) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.pax_headers = attributes or {}
            attributes = None  # of the first member only
            archive.addfile(member, io.BytesIO(content))
    return tar.getvalue()


def layout_of(tar: bytes) -> OvaLayout:
    return read_ova(reader(tar), len(tar))


PLAIN = [("vm.ovf", b"<Envelope/>"), ("vm.mf", b"SHA256(vm.ovf)= 0\n"), ("vm-disk1.vmdk", b"KDMV" * 300)]


@pytest.mark.parametrize(
    ("form", "attributes"),
    [
        (tarfile.USTAR_FORMAT, {}),
        (tarfile.GNU_FORMAT, {}),
        (tarfile.PAX_FORMAT, {}),
        (tarfile.PAX_FORMAT, {"mtime": "1.5", "comment": "x = y\nz"}),
    ],
)
def test_members_are_where_tar_has_put_them(form: int, attributes: dict[str, str]) -> None:
    tar = make_tar(PLAIN, form=form, attributes=attributes)
    layout = layout_of(tar)
    assert [(span.path, tar[span.offset : span.offset + span.length]) for span in layout.members] == PLAIN
    assert (layout.ovf, layout.disk) == (layout.members[0], layout.members[2])


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("directory", [".", "./"])
def test_directory_of_the_files_may_be_a_member(form: int, directory: str) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=form) as archive:
        for name, content in [(directory, b""), *PLAIN]:
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name == directory else tarfile.REGTYPE
            member.size = len(content)
            if form == tarfile.PAX_FORMAT:  # as GNU tar has them, for each member
                member.pax_headers = {"mtime": "1.5", "atime": "2.5"}
            archive.addfile(member, io.BytesIO(content))
    assert [member.path for member in layout_of(tar.getvalue()).members] == [name for name, _ in PLAIN]


def test_sizes_in_base_256_and_in_attributes_are_read() -> None:
    tar = bytearray(make_tar(PLAIN))
    tar[124:136] = b"\x80" + len(PLAIN[0][1]).to_bytes(11, "big")
    tar[148:156] = b"%06o\0 " % (sum(tar[:148]) + sum(tar[156:512]) + 8 * 32)
    assert layout_of(bytes(tar)) == layout_of(make_tar(PLAIN))
    with_attributes = make_tar(PLAIN, form=tarfile.PAX_FORMAT, attributes={"size": "5"})
    assert layout_of(with_attributes).ovf.length == 5


@pytest.mark.parametrize(
    "name",
    ["../vm.vmdk", "/vm.vmdk", "a/vm.vmdk", "a\\vm.vmdk", "c:vm.vmdk", "vm\n.vmdk", "x" * 300 + ".vmdk"],
)
def test_name_with_a_path_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="a name without a path is right"):
        layout_of(make_tar([PLAIN[0], (name, b"")], form=tarfile.PAX_FORMAT))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([], "first file of the OVA is missing"),
        ([PLAIN[2], PLAIN[0]], "first file of the OVA is vm-disk1.vmdk"),
        (PLAIN[:2], "0 are VMDK images"),
        ([*PLAIN, ("b.vmdk", b"")], "2 are VMDK images"),
        ([*PLAIN, ("b.ovf", b"")], "1 are VMDK images, and 2 are OVF descriptors"),
        ([*PLAIN, ("VM.MF", b"")], "the same name"),
        ([*PLAIN, *((f"note{number}", b"") for number in range(80))], "more than 64 files"),
    ],
)
def test_other_sets_of_files_are_refused(members: list[tuple[str, bytes]], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        layout_of(make_tar(members))


def changed_header(tar: bytes, position: int, data: bytes) -> bytes:
    """Return a tar with other bytes in its first header, and the right checksum."""
    header = bytearray(tar[:512])
    header[position : position + len(data)] = data
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    return bytes(header) + tar[512:]


@pytest.mark.parametrize("name", ["v" * 120 + ".vmdk", "ä" * 60 + ".vmdk", "./" + "v" * 150 + ".vmdk"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_gnu_and_pax_are_read(name: str, form: int) -> None:
    layout = layout_of(make_tar([PLAIN[0], (name, b"KDMV")], form=form))
    assert layout.disk.path == name.removeprefix("./")
    assert layout.disk.length == 4


def test_tar_from_before_ustar_is_read() -> None:
    tar = b"".join(
        changed_header(make_tar([member])[: 512 + -(-len(member[1]) // 512) * 512], 257, bytes(255))
        for member in PLAIN
    )
    assert is_old_tar(reader(tar))
    layout = layout_of(tar + bytes(1024))
    assert [(span.path, tar[span.offset : span.offset + span.length]) for span in layout.members] == PLAIN


@pytest.mark.parametrize(
    "data", [bytes(512), b"\xeb\x63\x90".ljust(512, b"\0"), b"a".ljust(512, b"1")], ids=range(3)
)
def test_disk_is_not_taken_for_a_tar(data: bytes) -> None:
    assert not is_old_tar(reader(data))


@pytest.mark.parametrize("end", [0, 512, 1024, 1536])
def test_end_of_the_file_is_an_end_of_the_archive(end: int) -> None:
    tar = make_tar(PLAIN)
    members = layout_of(tar).members
    content = members[-1].offset + -(-members[-1].length // 512) * 512
    assert layout_of(tar[:content] + bytes(end)) == layout_of(tar)
    with pytest.raises(FormatError, match="ends too soon"):
        layout_of(tar[:content] + bytes(100))


def test_names_may_begin_with_the_present_directory() -> None:
    entry = tarfile.TarInfo("./")
    entry.type = tarfile.DIRTYPE
    tar = entry.tobuf(tarfile.USTAR_FORMAT) + make_tar([(f"./{name}", content) for name, content in PLAIN])
    assert [span.path for span in layout_of(tar).members] == [name for name, _ in PLAIN]
    with pytest.raises(FormatError, match="the same name"):
        layout_of(make_tar([*PLAIN, ("./vm.mf", b"")]))


def test_attributes_of_all_members_are_read_unless_they_name_them() -> None:
    with_comment = tarfile.TarInfo.create_pax_global_header({"comment": "x"}) + make_tar(PLAIN)
    assert [span.path for span in layout_of(with_comment).members] == [name for name, _ in PLAIN]
    with pytest.raises(FormatError, match="one name or size"):
        layout_of(tarfile.TarInfo.create_pax_global_header({"path": "x"}) + make_tar(PLAIN))


@pytest.mark.parametrize(
    ("name", "content", "compression"),
    [
        ("disk1.vmdk.gz", gzip.compress(b"KDMV", mtime=0), "gzip"),
        ("disk1.vmdk", gzip.compress(b"KDMV", mtime=0), "gzip"),
        ("disk1.img", lzma.compress(b"KDMV"), "xz"),
        ("disk1.vmdk.bz2", bz2.compress(b"KDMV"), "bzip2"),
    ],
    ids=["gzip", "gzip-without-suffix", "xz", "bzip2"],
)
def test_compressed_disk_is_named(name: str, content: bytes, compression: str) -> None:
    with pytest.raises(FormatError, match=f"{name} in the OVA is compressed with {compression}"):
        layout_of(make_tar([PLAIN[0], (name, content)]))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, b"S"])
def test_members_that_are_no_files_are_refused(kind: bytes) -> None:
    tar = bytearray(make_tar(PLAIN))
    tar[156] = kind[0]
    tar[148:156] = b"%06o\0 " % (sum(tar[:148]) + sum(tar[156:512]) + 8 * 32)
    with pytest.raises(FormatError, match="has the type"):
        layout_of(bytes(tar))


@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=4), st.integers(0, 20480))
def test_damaged_tar_is_refused_or_read(changes: list[tuple[int, int]], cut: int) -> None:
    tar = bytearray(make_tar(PLAIN, form=tarfile.PAX_FORMAT, attributes={"comment": "x"}))
    for position, value in changes:
        tar[position] = value
    try:
        layout = layout_of(bytes(tar[:cut]))
    except FormatError:
        return
    assert all(span.offset + span.length <= cut for span in layout.members)

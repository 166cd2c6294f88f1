from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.ova import OvaLayout, read_ova
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
        ([*PLAIN, ("b.ovf", b"")], "and one OVF"),
        ([*PLAIN, ("VM.MF", b"")], "the same name"),
        ([*PLAIN, *((f"note{number}", b"") for number in range(80))], "more than 64 files"),
    ],
)
def test_other_sets_of_files_are_refused(members: list[tuple[str, bytes]], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        layout_of(make_tar(members))


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

"""ISOs that are made to mislead: refused with a reason, or edited, with few reads and little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FormatError, Unprocessable
from image_service.core.extents import Literal
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso_edit.editor import IsoEditor
from tests.core.formats.iso_edit.isos import FILES, MemoryFile, base_of, make_iso
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.formats.iso_edit.editor import IsoPlan

pytestmark = pytest.mark.slow

PRIMARY, JOLIET = 16 * SECTOR, 17 * SECTOR
MAX_READS, MAX_READ_BYTES, MAX_MEMORY = 10_000, 32 << 20, 32 << 20


class HostileIso:
    """An ISO whose structures are changed in place."""

    def __init__(self, layout: str = "rock-ridge-and-joliet") -> None:
        self.data = bytearray(make_iso(layout))

    def number(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 4], "little")

    def set_both(self, at: int, value: int) -> None:
        self.data[at : at + 8] = struct.pack("<I", value) + struct.pack(">I", value)

    def set(self, at: int, content: bytes) -> None:
        self.data[at : at + len(content)] = content

    @property
    def root(self) -> int:
        """The offset of the root directory."""
        return self.number(PRIMARY + 158) * SECTOR

    def record(self, name: bytes, directory: int | None = None) -> int:
        """Return the offset of the record whose Rock Ridge name is this."""
        start = self.root if directory is None else directory
        at = self.data.index(b"NM" + bytes([5 + len(name), 1, 0]) + name, start)
        position = start
        while not position <= at < position + self.data[position]:
            position += self.data[position] or SECTOR - position % SECTOR
        return position

    def rename(self, name: bytes, to: bytes) -> None:
        """Give a file of the root another name of the same length, in Rock Ridge and in ISO 9660."""
        assert len(name) == len(to)
        record = self.record(name)
        at = self.data.index(name, record + 33 + self.data[record + 32])
        self.set(at, to)
        self.set(record + 33, to[: self.data[record + 32]])


def name(to: bytes) -> Callable[[HostileIso], None]:
    """Return what renames a file or directory to a name of 3, 4, 5 or 8 bytes."""
    old = {3: b"EFI", 4: b"boot", 5: b"empty", 8: b"isolinux"}[len(to)]
    return lambda iso: iso.rename(old, to)


def patch(at: int, content: bytes) -> Callable[[HostileIso], None]:
    return lambda iso: iso.set(at, content)


def both(at: int, value: int) -> Callable[[HostileIso], None]:
    return lambda iso: iso.set_both(at, value)


def in_record(path: bytes, at: int, content: bytes) -> Callable[[HostileIso], None]:
    return lambda iso: iso.set(iso.record(path) + at, content)


def in_root(at: int, content: bytes) -> Callable[[HostileIso], None]:
    return lambda iso: iso.set(iso.root + at, content)


def both_in_record(path: bytes, at: int, value: int) -> Callable[[HostileIso], None]:
    return lambda iso: iso.set_both(iso.record(path) + at, value)


def loop(iso: HostileIso) -> None:
    """Let a directory be the root."""
    iso.set_both(iso.record(b"boot") + 2, iso.root // SECTOR)


def shared(iso: HostileIso) -> None:
    """Let two directories be one."""
    boot = iso.record(b"boot")
    iso.set(iso.record(b"EFI") + 2, bytes(iso.data[boot + 2 : boot + 18]))


def crossing(iso: HostileIso) -> None:
    """Let Joliet's root be the first tree's directory."""
    boot = iso.record(b"boot")
    iso.set(JOLIET + 158, bytes(iso.data[boot + 2 : boot + 18]))


def on_descriptor(iso: HostileIso) -> None:
    """Let the root lie where the descriptors are."""
    iso.set(16 * SECTOR + 158, struct.pack("<I", 16) + struct.pack(">I", 16))


def in_path_table(at: int, content: bytes) -> Callable[[HostileIso], None]:
    return lambda iso: iso.set(iso.number(PRIMARY + 140) * SECTOR + at, content)


def continue_for_ever(iso: HostileIso) -> None:
    """Let the entries of a record continue in a block that continues in itself."""
    record = iso.record(b"empty")
    area = record + 33 + iso.data[record + 32]
    area += area % 2
    block = iso.number(iso.record(b"boot") + 2)
    entry = b"CE\x1c\x01" + b"".join(struct.pack("<I", n) + struct.pack(">I", n) for n in (block, 0, 28))
    iso.set(area, entry)
    iso.set(block * SECTOR, entry)


def short_attributes(iso: HostileIso) -> None:
    at = iso.data.index(b"PX", iso.root)
    iso.data[at + 2] = 8


def parent_by_name(iso: HostileIso) -> None:
    """Give a directory the name .. in Rock Ridge."""
    at = iso.data.index(b"NM\x09\x01\0boot", iso.root)
    iso.set(at, b"NM\x07\x01\0..\0\0")


def partition(kind: int, first: int, sectors: int, behind: bytes = b"") -> Callable[[HostileIso], None]:
    """Return what sets the only partition; a negative sector counts from the end."""

    def change(iso: HostileIso) -> None:
        start = first % (len(iso.data) // 512)
        entry = struct.pack("<B3sB3sII", 0, b"", kind, b"", start, sectors)
        iso.set(446, entry + bytes(48) + b"\x55\xaa" + behind)

    return change


def end_root_in_a_sector(iso: HostileIso) -> None:
    size = iso.number(PRIMARY + 166) - 48
    iso.set_both(PRIMARY + 166, size)
    iso.set(iso.root + size, bytes(range(1, 49)))


def catalog_outside(iso: HostileIso) -> None:
    record = b"\0CD001\x01EL TORITO SPECIFICATION".ljust(71, b"\0")
    iso.set(17 * SECTOR, record + struct.pack("<I", 0x7FFFFFFF))


HOSTILE: dict[str, Callable[[HostileIso], None]] = {
    "a name ..": parent_by_name,
    "a name ../": name(b"../"),
    "a name that is .. by a flag": lambda iso: iso.set(
        iso.data.index(b"NM\x08\x01\0EFI", iso.root) + 4, b"\x04"
    ),
    "a name ../x": name(b"../x"),
    "a name of dots": name(b"...."),
    "a name with a slash": name(b"a/b"),
    "a name that begins with a slash": name(b"/etc"),
    "a name of slashes": name(b"/////"),
    "a name with a NUL": name(b"a\0b"),
    "a name of NULs": name(bytes(8)),
    "a name with a line end": name(b"a\nb"),
    "a name that is not UTF-8": name(b"\xff\xfe\xfd\xfc"),
    "a name of another file": name(b"boot\0"),
    "a name with a backslash": name(b"..\\x"),
    "a name of escape sequences": name(b"\x1b[2J\x1b[0m"),
    "a loop of directories": loop,
    "a directory with two names": shared,
    "trees that cross": crossing,
    "a root on the descriptors": on_descriptor,
    "a directory outside": both_in_record(b"boot", 2, 1 << 30),
    "a directory at the end": lambda iso: iso.set_both(iso.record(b"boot") + 2, len(iso.data) // SECTOR),
    "a directory of 4 GiB": both_in_record(b"boot", 10, 0xFFFFFFFF),
    "a directory of 1 MiB and a byte": both_in_record(b"boot", 10, (1 << 20) + 1),
    "a directory without bytes": both_in_record(b"boot", 10, 0),
    "a directory that ends in a sector": lambda iso: iso.set_both(iso.root + 10, 2000),
    "a root that ends in a sector": end_root_in_a_sector,
    "a directory of one record": both_in_record(b"boot", 10, 34),
    "a directory that is interleaved": in_record(b"boot", 26, b"\x01\x01"),
    "a directory with extended attributes": in_record(b"boot", 1, b"\xff"),
    "a file that is a directory": in_record(b"empty", 25, b"\x02"),
    "a directory that is a file": in_record(b"boot", 25, b"\x00"),
    "a file of sections without end": in_record(b"empty", 25, b"\x80"),
    "a file outside": both_in_record(b"empty", 2, 0xFFFFFFFF),
    "a file of 4 GiB": both_in_record(b"empty", 10, 0xFFFFFFFF),
    "a record without a length": in_record(b"boot", 0, b"\x00"),
    "a record of one byte": in_record(b"boot", 0, b"\x01"),
    "a record that leaves its sector": in_record(b"boot", 0, b"\xff"),
    "a name that leaves its record": in_record(b"boot", 32, b"\xff"),
    "a root of another size": patch(PRIMARY + 166, struct.pack("<I", 0xFFFFFFF0)),
    "a root outside": both(PRIMARY + 158, 0x7FFFFFFF),
    "a root without itself": in_root(33, b"X"),
    "a volume of 8 TiB": both(PRIMARY + 80, 0xFFFFFFFF),
    "blocks of 512 bytes": patch(PRIMARY + 128, struct.pack("<H", 512)),
    "no last descriptor": patch(18 * SECTOR, b"\x02CD001\x01"),
    "descriptors without end": lambda iso: iso.set(18 * SECTOR, (b"\x02CD001\x01".ljust(SECTOR, b"\0")) * 40),
    "a path table of 4 GiB": both(PRIMARY + 132, 0xFFFFFFFF),
    "a path table outside": patch(PRIMARY + 140, struct.pack("<I", 0x7FFFFFFF)),
    "a path table without bytes": both(PRIMARY + 132, 0),
    "a path table that ends in a name": both(PRIMARY + 132, 17),
    "a path table whose parents are later": in_path_table(16, b"\xff\xff"),
    "a path table whose names are longer": in_path_table(10, b"\xff"),
    "a path table without the directories": in_path_table(18, b"ZZ"),
    "entries that continue for ever": continue_for_ever,
    "attributes that are too short": short_attributes,
    "entries that are skipped": lambda iso: iso.set(iso.data.index(b"\xbe\xef", iso.root) + 2, b"\xff"),
    "a boot catalog outside": catalog_outside,
    "a partition of 2 TiB": partition(0x17, 0, 0xFFFFFFFF),
    "a partition at its end": partition(0x17, -1, 1),
    "a GPT of 4,294,967,295 entries": partition(0xEE, 1, 9999, b"EFI PART\0\0\1\0\x5c\0\0\0" + b"\xff" * 400),
}


def try_edit(data: bytes) -> tuple[IsoPlan | None, str]:
    """Edit an ISO; return the plan, or the reason why there is none."""
    file = MemoryFile(data)
    base = base_of(file)
    tracemalloc.start()
    try:
        editor = IsoEditor(base)
        for directory in ("", "boot", "EFI", "boot/grub"):
            assert all(
                "/" not in each and each not in {"", ".", ".."} for each in editor.list(directory) or ()
            )
        for path in ("boot/new/file", "file", "EFI/BOOT/grub.cfg", "boot/grub/grub.cfg"):
            editor.put(path, (Literal(b"content"),))
        plan = editor.finish()
        edited = plan.apply(base)
        assert len(data) < edited.size < len(data) + (8 << 20)
        reason, found = "", plan
    except (FormatError, Unprocessable) as error:
        reason, found = error.detail, None
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(file.reads) < MAX_READS
    assert sum(min(length, len(data)) for length in file.reads) < MAX_READ_BYTES
    assert peak < MAX_MEMORY
    assert len(reason) < 500
    return found, reason


def test_there_are_forty_of_them() -> None:
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_iso_is_refused_or_edited(fault: str) -> None:
    iso = HostileIso()
    HOSTILE[fault](iso)
    assert iso.data != make_iso("rock-ridge-and-joliet")
    plan, reason = try_edit(bytes(iso.data))
    assert (plan is None) == bool(reason)
    if plan is not None:
        edited = plan.apply(base_of(bytes(iso.data)))
        again = IsoEditor(base_of(edited.read_at(0, edited.size)))
        found = again.find("file")
        assert found is not None
        assert found.read_at(0, found.size) == b"content"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("a loop of directories", "two directories of the ISO, or one under two names"),
        ("a directory with two names", "two directories of the ISO, or one under two names"),
        ("trees that cross", "overlap"),
        ("a directory outside", "ends too soon"),
        ("a directory of 4 GiB", "more than 1048576"),
        ("a path table of 4 GiB", "more than 8388608"),
        ("a path table without the directories", "lacks a directory"),
        ("entries that continue for ever", "continue more than 16 times"),
        ("a volume of 8 TiB", "incomplete"),
        ("a record that leaves its sector", "damaged directory record"),
    ],
)
def test_reason_names_the_fault(fault: str, reason: str) -> None:
    iso = HostileIso()
    HOSTILE[fault](iso)
    assert reason in try_edit(bytes(iso.data))[1]


@pytest.mark.timeout(7200)  # thousands, on a slow machine
@pytest.mark.parametrize("count", [40, soaked(5000)])
def test_mutated_isos_are_refused_or_edited(count: int) -> None:
    """Each changes up to four bytes of the system area, descriptors, path tables or directories."""
    choose = random.Random(count)  # noqa: S311 - a choice
    edited = 0
    layouts = ("rock-ridge-and-joliet", "hybrid-gpt", "appended-esp-in-mbr", "level-4")
    for number in range(count):
        original = make_iso(layouts[number % len(layouts)])
        data = bytearray(original)
        end = min(len(data), original.index(FILES["boot/vmlinuz"][:512]))
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(end)
            while not any(original[at : at + 8]):  # most of them are padding
                at = choose.randrange(end)
            data[at] = choose.choice((0, 1, 0x7F, 0x80, 0xFF, choose.randrange(256)))
        plan, _ = try_edit(bytes(data))
        edited += plan is not None
    assert edited, "most of them are harmless"

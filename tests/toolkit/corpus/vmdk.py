"""Hostile VMDK images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.toolkit.corpus.images import (
    DISK_BYTES,
    MIB,
    Hostile,
    convert,
    disk_content,
    file_of,
    image,
    number_at,
    patched,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.toolkit.corpus.images import Build, Change

_SPARSE = "subformat=monolithicSparse"
_AT_END = (1 << 64) - 1
_SECTORS = DISK_BYTES // 512


def flat_vmdk(directory: Path, host: Path) -> Path:
    """Build the second attack: the extent of a VMDK descriptor is a file of the host."""
    path = directory / "flat.vmdk"
    path.write_text(_descriptor("monolithicFlat", f'RW {_SECTORS} FLAT "{host}" 0'))
    return path


def _descriptor(kind: str, extent: str) -> str:
    head = (
        "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\n"
        f'createType="{kind}"\n# Extent description\n'
    )
    return f'{head}{extent}\nddb.adapterType = "ide"\n'


def _text(kind: str, extent: str, before: str = "", marker: str = "# Disk DescriptorFile") -> Build:
    def build(directory: Path, host: Path) -> Path:
        path = directory / "descriptor.img"
        text = _descriptor(kind, extent.format(host=host))
        path.write_text(before + text.replace("# Disk DescriptorFile", marker))
        return path

    return build


def _changed(*changes: Change, subformat: str = "monolithicSparse") -> Build:
    return file_of(lambda: patched(image("vmdk", f"subformat={subformat}"), *changes))


def _embedded(old: str, new: str) -> Build:
    """Change the descriptor in a monolithicSparse VMDK."""

    def build(directory: Path, host: Path) -> Path:
        data = image("vmdk", _SPARSE)
        end = 512 + 512 * number_at(data, 36, "<Q")
        text = data[512:end].rstrip(b"\0").decode()
        assert old in text
        changed = text.replace(old, new.format(host=host)).encode()
        path = directory / "hostile.vmdk"
        path.write_bytes(data[:512] + changed.ljust(end - 512, b"\0") + data[end:])
        return path

    return build


def _directory_entry(entry: int, number: int | None) -> Build:
    """Change an entry of the grain directory; None: as the first one. A grain table is for 32 MiB."""

    def make() -> bytes:
        data = convert(disk_content() + bytes(40 * MIB) + disk_content(), "vmdk", _SPARSE)
        table = number_at(data, 56, "<Q") * 512
        changed = number_at(data, table, "<I") if number is None else number
        return patched(data, (table + 4 * entry, "<I", changed))

    return file_of(make)


def _grain(number: int | None) -> Build:
    """Change the first grain's entry; None: as the second one."""

    def make() -> bytes:
        data = image("vmdk", _SPARSE)
        table = number_at(data, number_at(data, 56, "<Q") * 512, "<I") * 512
        changed = number_at(data, table + 4, "<I") if number is None else number
        return patched(data, (table, "<I", changed))

    return file_of(make)


def stream_with_footer(*changes: Change) -> bytes:
    """Return a streamOptimized VMDK as VMware writes it: a footer has the place of the directory."""
    data = image("vmdk", "subformat=streamOptimized")
    data += bytes(-len(data) % 512)
    header = data[:512]
    marker = patched(bytes(512), (0, "<Q", 1), (12, "<I", 3))
    return patched(data, (56, "<Q", _AT_END)) + marker + patched(header, *changes) + bytes(512)


def _footer(*changes: Change) -> Build:
    return file_of(lambda: stream_with_footer(*changes))


HOSTILE = (
    Hostile("vmdk-flat-extent", "Unsupported subformat|monolithicFlat", flat_vmdk),
    Hostile("vmdk-flat-extent-declared", "monolithicFlat|subformat", flat_vmdk, "vmdk"),
    Hostile("vmdk-flat-extent-declared-raw", "declared .* raw.* vmdk", flat_vmdk, "raw"),
    Hostile(
        "vmdk-flat-behind-comments",
        "vmdk|VMDK|descriptor",
        _text("monolithicFlat", f'RW {_SECTORS} FLAT "{{host}}" 0', "# a\n\n  \n# b\n", "# c"),
    ),
    Hostile(
        "vmdk-flat-in-capitals",
        "vmdk|VMDK|descriptor",
        _text("MONOLITHICFLAT", f'RW {_SECTORS} FLAT "{{host}}" 0', marker="# DISK DESCRIPTORFILE"),
    ),
    Hostile(
        "vmdk-several-extents", "subformat|twoGb", _text("twoGbMaxExtentSparse", 'RW 9 SPARSE "a-s001.vmdk"')
    ),
    Hostile("vmdk-raw-device", "subformat|fullDevice", _text("fullDevice", 'RW 9 FLAT "/dev/sda" 0')),
    Hostile("vmdk-custom-text", "descriptor|header", _text("monolithicSparse", 'RW 9 SPARSE "{host}"')),
    Hostile(
        "vmdk-embedded-flat", "subformat|monolithicFlat", _embedded("monolithicSparse", "monolithicFlat")
    ),
    Hostile("vmdk-extent-of-host", "extent", _embedded(' SPARSE "target"', ' FLAT "{host}" 0')),
    Hostile("vmdk-extent-above", "extent", _embedded('"target"', '"../../target"')),
    Hostile("vmdk-two-extents", "extent", _embedded('"target"', '"target"\nRW 8 FLAT "passwd" 0')),
    Hostile("vmdk-parent", "parent", _embedded("parentCID=ffffffff", "parentCID=12345678")),
    Hostile(
        "vmdk-parent-hint", "parent", _embedded("CID=", 'parentFileNameHint="{host}"\nparentCID=1\nCID=')
    ),
    Hostile("vmdk-unknown-line", "[Dd]escriptor", _embedded("# The Disk", "INCLUDE {host}\n# The Disk")),
    Hostile("vmdk-capacity-2-63", "claims|capacity", _changed((12, "<Q", 1 << 54))),
    Hostile("vmdk-capacity-64-bits", "claims|capacity", _changed((12, "<Q", (1 << 64) - 1))),
    Hostile("vmdk-grains-of-2-60", "grain", _changed((20, "<Q", 1 << 60))),
    Hostile("vmdk-grains-of-0", "grain", _changed((20, "<Q", 0))),
    Hostile("vmdk-directory-outside", "outside|leaves|directory", _changed((56, "<Q", 1 << 40))),
    Hostile("vmdk-descriptor-outside", "[Dd]escriptor", _changed((28, "<Q", 1 << 40))),
    Hostile("vmdk-descriptor-of-2-60", "[Dd]escriptor", _changed((36, "<Q", 1 << 51))),
    Hostile("vmdk-table-outside", "outside|leaves", _directory_entry(0, 0xFFFFFFFF)),
    Hostile("vmdk-table-twice", "overlap|twice", _directory_entry(1, None)),
    Hostile("vmdk-table-is-header", "overlap|twice|leaves", _directory_entry(0, 1)),
    Hostile("vmdk-grain-outside", "outside|leaves", _grain(0xFFFFFFF0)),
    Hostile("vmdk-grain-twice", "overlap|twice", _grain(None)),
    Hostile("vmdk-unknown-version", "version", _changed((4, "<I", 9))),
    Hostile("vmdk-esx", "COW|vmdk|VMDK", file_of(lambda: b"COWD" + bytes(MIB))),
    Hostile("vmdk-footer-with-other-descriptor", "[Ff]ooter", _footer((28, "<Q", 9))),
    Hostile("vmdk-footer-of-footer", "[Ff]ooter", _footer((56, "<Q", _AT_END))),
    Hostile("vmdk-stream-cut", "[Ff]ooter", file_of(lambda: stream_with_footer()[:-512])),
    Hostile(
        "vmdk-with-vhd-footer",
        "any of vhd, vmdk",
        file_of(lambda: image("vmdk", _SPARSE) + image("vpc", "subformat=fixed,force_size=on")[-512:]),
    ),
)

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError, KernelArgumentsTooLarge
from image_service.core.families.coreos.boot_config import (
    BootConfig,
    BootConfigs,
    add_kargs_areas,
    derive_minimal_configs,
    render_kargs_json,
)
from image_service.core.families.coreos.kargs_areas import KargsArea
from image_service.core.formats.iso9660.volume import read_iso9660
from tests.core.formats.reading import fixture, read_layout, reader

LIVEISO = "coreos.liveiso=rhcos-9.6"
FULL = f"mitigations=auto {LIVEISO} ignition.firstboot"
MINIMAL = "mitigations=auto ignition.firstboot"
MARK = "# COREOS_KARG_EMBED_AREA"
FIRST = ["/images/pxeboot/initrd.img", "/images/ignition.img"]
FURTHER = ["/images/assisted_installer_custom.img", "/images/nmstate.img"]


@attrs.frozen
class Entry:
    """A menu entry.

    Args:
        indent: blanks before each command.
        suffix: of GRUB's commands.
        initrd_first: whether GRUB's initrd comes before its kernel.
        trailer: what follows on the line of GRUB's initrd.
    """

    indent: str
    suffix: str
    initrd_first: bool
    trailer: str

    def render(self, path: str, initrds: list[str], arguments: str) -> str:
        """Return the entry as in a file of that name."""
        if path.lower().endswith("isolinux.cfg"):
            append = f"{self.indent}append initrd={','.join(initrds)} {arguments}\n"
            return f"label linux\n{self.indent}kernel /images/pxeboot/vmlinuz\n{append}"
        kernel = f"{self.indent}linux{self.suffix} /images/pxeboot/vmlinuz {arguments}\n"
        initrd = f"{self.indent}initrd{self.suffix} {' '.join(initrds)}{self.trailer}\n"
        commands = initrd + kernel if self.initrd_first else kernel + initrd
        return f"menuentry 'Live' {{\n{commands}}}\n"


def area_of(arguments: str, size: int) -> str:
    """Return the bytes of an area and its comment."""
    return f"{arguments}\n".ljust(size, "#") + MARK


def render(path: str, entries: list[Entry], initrds: list[str], arguments: str) -> str:
    """Return a whole configuration."""
    texts = (entry.render(path, initrds, arguments) for entry in entries)
    return "# a comment, of linux and initrd\nset timeout=5\n" + "\nmenu separator\n".join(texts)


def with_areas(path: str, entries: list[Entry], initrds: list[str], arguments: str, size: int) -> BootConfig:
    """Return a configuration whose areas are found by search."""
    text = render(path, entries, initrds, area_of(arguments, size))
    offsets = [at for at in range(len(text)) if text.startswith(area_of(arguments, size), at)]
    return BootConfig(path, text.encode(), tuple(KargsArea(at, b"#", b"\n", path) for at in offsets))


PATHS = st.sampled_from(["EFI/redhat/grub.cfg", "boot/grub/grub.cfg", "isolinux/isolinux.cfg"])
ENTRIES = st.lists(
    st.builds(
        Entry,
        indent=st.text(" \t", max_size=3),
        suffix=st.sampled_from(["", "efi"]),
        initrd_first=st.booleans(),
        trailer=st.sampled_from(["", " ", "\t# and no more", "; true"]),
    ),
    min_size=1,
    max_size=3,
)
ONE = [Entry("\t", "", initrd_first=False, trailer="")]


@given(
    configs=st.lists(st.tuples(PATHS, ENTRIES), min_size=1, max_size=3),
    initrds=st.lists(st.sampled_from(FURTHER), max_size=2),
    room=st.integers(1, 1100),
)
def test_further_initrds_are_added_to_every_line_and_areas_move(
    configs: list[tuple[str, list[Entry]]], initrds: list[str], room: int
) -> None:
    size = len(FULL) + room
    full = tuple(with_areas(path, entries, FIRST, FULL, size) for path, entries in configs)
    minimal = tuple(with_areas(path, entries, FIRST + initrds, MINIMAL, size) for path, entries in configs)
    assert sum(len(config.areas) for config in full) == sum(len(entries) for _, entries in configs)
    assert derive_minimal_configs(BootConfigs(FULL, size, full), initrds) == BootConfigs(
        MINIMAL, size, minimal
    )


@given(configs=st.lists(st.tuples(PATHS, ENTRIES), min_size=1, max_size=3), blanks=st.text(" \t", max_size=2))
def test_plain_arguments_move_into_areas(configs: list[tuple[str, list[Entry]]], blanks: str) -> None:
    plain = [
        BootConfig(path, render(path, entries, FIRST, FULL + blanks).encode()) for path, entries in configs
    ]
    size = len(FULL) + 1024
    expected = tuple(with_areas(path, entries, FIRST, FULL, size) for path, entries in configs)
    assert add_kargs_areas(plain) == BootConfigs(FULL, size, expected)


def test_lines_without_liveiso_get_no_area() -> None:
    text = render("grub.cfg", ONE, FIRST, "rescue") + render("grub.cfg", ONE, FIRST, FULL)
    made = add_kargs_areas([BootConfig("grub.cfg", text.encode())])
    (area,) = made.configs[0].areas
    assert made.configs[0].content.decode() == text.replace(FULL, area_of(FULL, made.size))
    assert area.offset == text.index(FULL)


@pytest.mark.parametrize("arguments", ["", "ignition.firstboot", f"{LIVEISO} \u00e9"])
def test_configs_without_liveiso_are_refused(arguments: str) -> None:
    config = BootConfig("grub.cfg", render("grub.cfg", ONE, FIRST, arguments).encode())
    with pytest.raises(FormatError, match=r"with coreos\.liveiso= in grub\.cfg have 0 different sets"):
        add_kargs_areas([config])


def test_differing_arguments_are_refused() -> None:
    configs = [
        BootConfig(path, render(path, ONE, FIRST, f"{FULL} {path}").encode())
        for path in ("grub.cfg", "isolinux.cfg")
    ]
    with pytest.raises(FormatError, match=r"in grub\.cfg, isolinux\.cfg have 2 different sets"):
        add_kargs_areas(configs)


def test_iso_without_boot_configurations_is_refused() -> None:
    with pytest.raises(FormatError, match="in no boot configuration have 0"):
        add_kargs_areas([])


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("EFI/redhat/grub.cfg", " initrdefi /a", True),
        ("EFI/redhat/grub.cfg", "# initrd /a", False),
        ("EFI/redhat/grub.cfg", "initrdfs /a", False),
        ("EFI/redhat/grub.cfg", "configfile /EFI/fedora/grub.cfg", False),
        ("isolinux/isolinux.cfg", "  APPEND initrd=/a", True),
        ("ISOLINUX/ISOLINUX.CFG", "append initrd=/a", True),
        ("isolinux/isolinux.cfg", "initrd /a", False),
    ],
)
def test_config_that_names_initrds_is_recognized(path: str, line: str, expected: object) -> None:
    assert BootConfig(path, f"before\n{line}\nbehind\n".encode()).names_initrds is expected


@pytest.mark.parametrize(
    ("default", "behind", "reason"),
    [
        (FULL, "", "grub.cfg names no initrd"),
        (f"{FULL}\ninitrd /a", "\ninitrd /a\n", "inside the area at offset 2"),
        (FULL, f"\ninitrd /a\nlinux /b {LIVEISO}\n", "has coreos.liveiso= outside of its areas"),
    ],
)
def test_config_that_would_not_boot_is_refused(default: str, behind: str, reason: str) -> None:
    content = f"# {area_of(default, 200)}{behind}"
    config = BootConfig("grub.cfg", content.encode(), (KargsArea(2, b"#", b"\n"),))
    with pytest.raises(FormatError, match=reason):
        derive_minimal_configs(BootConfigs(default, 200, (config,)), FURTHER)


def test_initrd_inside_an_area_is_refused() -> None:
    content = b"a\ninitrd /a".ljust(30, b"\0") + b"\n"
    config = BootConfig("grub.cfg", content, (KargsArea(0, b"\0", b"\0"),))
    with pytest.raises(FormatError, match="inside the area at offset 0"):
        derive_minimal_configs(BootConfigs("a\ninitrd /a", 30, (config,)), FURTHER)


def test_arguments_as_long_as_their_area_are_refused() -> None:
    config = BootConfig("grub.cfg", MINIMAL.encode() + b"\ninitrd /a\n", (KargsArea(0, b"#", b"\n"),))
    with pytest.raises(KernelArgumentsTooLarge):
        derive_minimal_configs(BootConfigs(MINIMAL, len(MINIMAL), (config,)), FURTHER)


@pytest.mark.parametrize("pad", [b"#", b"\0"])
def test_kargs_area_keeps_its_pad_and_end_in_a_derived_config(pad: bytes) -> None:
    content = FULL.encode().ljust(200, pad) + b"\ninitrd /a\n"
    config = BootConfig("grub.cfg", content, (KargsArea(0, pad, pad),))
    (derived,) = derive_minimal_configs(BootConfigs(FULL, 200, (config,)), FURTHER[:1]).configs
    assert derived.content == MINIMAL.encode().ljust(200, pad) + f"\ninitrd /a {FURTHER[0]}\n".encode()


# What builders write.


@pytest.mark.parametrize("name", ["embed-areas-2021-09.iso", "embed-areas-2023-07.x86_64.iso"])
def test_derived_kargs_json_describes_the_areas(name: str) -> None:
    boot = read_boot_configs(fixture(name))
    derived = derive_minimal_configs(boot, FURTHER)
    info = json.loads(render_kargs_json(derived))
    contents = {config.path: config.content for config in derived.configs}
    assert info["default"] == boot.default.replace(f" {liveiso(boot)}", "")
    for file in info["files"]:
        area = contents[file["path"]][file["offset"] :][: info["size"]].decode()
        assert area == f"{info['default']}{file['end']}".ljust(info["size"], file["pad"])
    for content in contents.values():
        assert content.count(b"/images/nmstate.img") == content.count(b"/images/ignition.img") == 1
        assert b"coreos.liveiso" not in content


def test_kargs_json_equals_that_of_builders() -> None:
    image = fixture("embed-areas-2023-07.x86_64.iso")
    file = read_iso9660(reader(image), len(image)).find_file("coreos/kargs.json")
    assert render_kargs_json(read_boot_configs(image)) == image[file.offset : file.offset + file.length]


def test_areas_have_the_size_of_builders() -> None:
    """The oldest image has no areas, and the next one does."""
    image = fixture("embed-areas-2020-09.iso")
    iso = read_iso9660(reader(image), len(image))
    files = [iso.find_file(path) for path in ("EFI/redhat/grub.cfg", "isolinux/isolinux.cfg")]
    configs = [BootConfig(file.path, image[file.offset : file.offset + file.length]) for file in files]
    kargs = read_layout(fixture("embed-areas-2021-01.iso")).kernel_arguments
    assert kargs is not None
    made = add_kargs_areas(configs)
    assert made.size - len(made.default) == kargs.size - len(kargs.default)


def read_boot_configs(image: bytes) -> BootConfigs:
    """Return the boot configurations of an image that lists its areas."""
    iso = read_iso9660(reader(image), len(image))
    kargs = read_layout(image).kernel_arguments
    assert kargs is not None
    configs = []
    for area in kargs.areas:
        file = iso.find_file(area.name)
        moved = attrs.evolve(area, offset=area.offset - file.offset)
        configs.append(BootConfig(file.path, image[file.offset : file.offset + file.length], (moved,)))
    return BootConfigs(kargs.default, kargs.size, tuple(configs))


def liveiso(boot: BootConfigs) -> str:
    """Return the argument that searches for the full ISO."""
    return next(word for word in boot.default.split() if word.startswith("coreos.liveiso="))

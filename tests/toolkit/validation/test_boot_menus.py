"""Which entry boots: of GRUB and of systemd-boot, with what the choice depends on."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.filesystems.detection import FileSystem
from image_service.core.formats.filesystems.fat import read_fat
from image_service.core.formats.newc import Member, write_archive
from image_service.toolkit.inspection.content import Volume
from image_service.toolkit.validation.boot_entry import find_boot_entry, read_initrd
from image_service.toolkit.validation.boot_menus import BootChoice, find_boot_choice
from image_service.toolkit.validation.verdicts import CannotTell
from tests.acceptance.clients import run_client
from tests.core.formats.boot_loader.trees import make_tree
from tests.core.formats.efi_programs import build_efi_program, build_unified_kernel
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BLSCFG = 'load_env\nset default="${saved_entry}"\nblscfg\n'


def entries(*names: str, options: str = "root=LABEL=root", **values: str) -> dict[str, str]:
    """Return entries below loader/entries whose kernel is named as they are."""
    lines = "".join(f"{key} {value}\n" for key, value in values.items())
    return {
        f"loader/entries/{name}.conf": f"title T {name}\nlinux /{name}\ninitrd /i\noptions {options}\n{lines}"
        for name in names
    }


def choice(*volumes: Mapping[str, str]) -> BootChoice:
    """Return the default entry of a disk with volumes of files."""
    made = [
        Volume(None, FileSystem("ext4", root=make_tree(files)), lambda _offset, _length: b"", 0)
        for files in volumes
    ]
    found = find_boot_choice(made)
    assert found
    return found


KERNELS = entries("m-5.14.0-70.el9", "m-5.14.0-427.el9")


@pytest.mark.parametrize(
    ("files", "kernel"),
    [
        (KERNELS, "/m-5.14.0-427.el9"),
        (entries("m-5.9.0-1", "m-5.14.0-1"), "/m-5.14.0-1"),
        ({**KERNELS, "grub2/grub.cfg": BLSCFG}, "/m-5.14.0-427.el9"),
        ({**KERNELS, "grub2/grubenv": "saved_entry=m-5.14.0-70.el9\n"}, "/m-5.14.0-70.el9"),
        (
            {**KERNELS, "grub2/grub.cfg": BLSCFG, "grub2/grubenv": "saved_entry=m-5.14.0-70.el9\n"},
            "/m-5.14.0-70.el9",
        ),
        (
            {**KERNELS, "grub2/grub.cfg": BLSCFG, "grub2/grubenv": "saved_entry=T m-5.14.0-70.el9\n"},
            "/m-5.14.0-70.el9",
        ),
        ({**KERNELS, "grub2/grub.cfg": BLSCFG, "grub2/grubenv": "saved_entry=1\n"}, "/m-5.14.0-70.el9"),
        ({**KERNELS, "grub2/grub.cfg": BLSCFG, "grub2/grubenv": "saved_entry=gone\n"}, "/m-5.14.0-427.el9"),
        (
            {**KERNELS, "grub2/grubenv": "saved_entry=m-5.14.0-427.el9\nnext_entry=m-5.14.0-70.el9\n"},
            "/m-5.14.0-70.el9",
        ),
        (
            {
                **KERNELS,
                "grub/grub.cfg": "set default=1\nmenuentry a { linux /a\n}\nmenuentry b { linux /b\n}",
            },
            "/b",
        ),
        (
            {**entries("Pop_OS-current", "Pop_OS-oldkern"), "loader/loader.conf": "default Pop_OS-current\n"},
            "/Pop_OS-current",
        ),
        ({**entries("a-1", "a-2", "b-1"), "loader/loader.conf": "timeout 3\ndefault A-*.conf\n"}, "/a-2"),
        ({**entries("a+0-3", "a-1+2"), "loader/loader.conf": "#default x\n"}, "/a-1+2"),
        ({**entries("arch", "arch-fallback"), "loader/loader.conf": "timeout 3\n"}, "/arch"),
        ({**entries("linux", "linux-lts", "linux-zen"), "loader/loader.conf": "timeout 3\n"}, "/linux"),
        ({**entries("arch+3", "arch-lts+3"), "loader/loader.conf": "timeout 3\n"}, "/arch+3"),
        ({**entries("Fedora", "arch"), "loader/loader.conf": "timeout 3\n"}, "/Fedora"),
    ],
)
def test_entry_is_the_one_that_boots(files: Mapping[str, str], kernel: str) -> None:
    assert choice(files).kernel == kernel


def test_environment_and_menu_may_be_on_other_volumes() -> None:
    link = {"grub2/grubenv": "->../efi/EFI/redhat/grubenv"}
    system_partition = {
        "EFI/redhat/grubenv": "saved_entry=m-5.14.0-70.el9\n",
        "EFI/redhat/grub.cfg": BLSCFG,
    }
    assert choice(system_partition, {**KERNELS, **link}).kernel == "/m-5.14.0-70.el9"
    with pytest.raises(CannotTell, match="depends on facts that only a machine knows"):
        choice({**KERNELS, **link, "grub2/grub.cfg": BLSCFG})
    stub = {"EFI/debian/grub.cfg": "search --fs-uuid 1 --set=root\nset prefix=($root)'/grub'\n"}
    assert choice(stub, {"grub/grub.cfg": "menuentry a { linux /a\n}"}).kernel == "/a"


def test_variables_of_grub_are_expanded() -> None:
    written = entries("m-4.18.0-80.el8", options="$kernelopts $tuned_params", initrd="$tuned_initrd")
    known = {"grub2/grubenv": "saved_entry=m-4.18.0-80.el8\nkernelopts=root=UUID=1 console=ttyS0\n"}
    found = choice({**written, **known})
    assert found.arguments == ("root=UUID=1", "console=ttyS0")
    assert found.initrds == ("/i",)
    script = {"grub2/grub.cfg": f'set tuned_initrd=/t.img\nset kernelopts="root=UUID=2 ro"\n{BLSCFG}'}
    found = choice({**written, **script})
    assert found.arguments == ("root=UUID=2", "ro")
    assert found.initrds == ("/i", "/t.img")
    default = {"loader/entries/a.conf": "linux /a\n"}
    assert choice({**default, "grub2/grub.cfg": f"set default_kernelopts=x=1\n{BLSCFG}"}).arguments == (
        "x=1",
    )


def test_variable_that_is_set_elsewhere_is_not_guessed() -> None:
    files = entries("m-1", options="root=LABEL=a $kernelopts quiet")
    volume = Volume(None, FileSystem("ext4", root=make_tree(files)), lambda _offset, _length: b"", 0)
    entry = find_boot_entry([volume])
    with pytest.raises(CannotTell, match=r"the kernel arguments have \$kernelopts, which is set elsewhere"):
        entry.last("root")
    assert entry.last("quiet") == ""


def test_systemd_boot_orders_by_its_own_keys() -> None:
    keyed = {
        **entries("z-1", **{"sort-key": "b", "version": "1"}),
        **entries("a-2", **{"sort-key": "a", "version": "2.9"}),
        **entries("a-1", **{"sort-key": "a", "version": "2.10"}),
        **entries("zz-9"),
    }
    assert choice({**keyed, "loader/loader.conf": "timeout 0\n"}).kernel == "/a-1"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {
                **KERNELS,
                "grub2/grubenv": "saved_entry=m-5.14.0-70.el9\n",
                "loader/loader.conf": "timeout 1\n",
            },
            "GRUB starts m-5.14.0-70.el9.conf, and systemd-boot m-5.14.0-427.el9.conf",
        ),
        ({**KERNELS, "loader/loader.conf": "default @saved\n"}, "default @saved"),
        ({**KERNELS, "loader/loader.conf": "timeout 1\n", "EFI/Linux/a.efi": "MZ"}, "in parts"),
        ({**KERNELS, "grub2/grub.cfg": BLSCFG, "EFI/Linux/a.efi": "MZ"}, "in parts"),
        (
            {**entries("b-1-1", **{"sort-key": "y"}), **entries("a-1-1", **{"sort-key": "x"})},
            "neither's configuration",
        ),
        (
            {**KERNELS, "grub2/grub.cfg": "if [ $grub_cpu = x ]; then set default=1; fi\nblscfg\n"},
            "only a machine knows",
        ),
        ({"loader/entries/a.conf": "efi /shellx64.efi\n"}, "starts another program"),
    ],
)
def test_choice_that_depends_on_the_unread_is_not_made(files: Mapping[str, str], reason: str) -> None:
    with pytest.raises(CannotTell, match=reason):
        choice(files)


# Unified kernel images, on file systems that mtools write


def unified(arguments: str, version: str = "1", **others: bytes) -> bytes:
    """Return an image with the arguments as its kernel."""
    sections = {
        ".osrel": f"ID=x\nVERSION_ID={version}\n".encode(),
        ".cmdline": arguments.encode(),
        ".linux": b"MZ " + arguments.encode(),
        ".initrd": gzip.compress(write_archive([Member("lib/modules/6/nvme.ko", b"")])),
        **{f".{name}": content for name, content in others.items()},
    }
    return build_unified_kernel(sections)


def fat(directory: Path, files: Mapping[str, str | bytes]) -> Volume:
    """Return a volume with files."""
    image = directory / "fat"
    run_client("mkfs.vfat", "-C", image, "2048")
    parents = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    for parent in sorted(parents):
        run_client("mmd", "-i", image, f"::{parent}")
    for path, content in files.items():
        (directory / "content").write_bytes(content if isinstance(content, bytes) else content.encode())
        run_client("mcopy", "-i", image, directory / "content", f"::{path}")
    data = image.read_bytes()
    return Volume(
        None, FileSystem("vfat", root=read_fat(reader(data), len(data)).root), reader(data), len(data)
    )


SYSTEMD = {"loader/loader.conf": "timeout 0\n"}


@pytest.mark.parametrize(
    ("files", "image", "arguments"),
    [
        ({"EFI/Linux/a.efi": unified("root=LABEL=a")}, "EFI/Linux/a.efi", ("root=LABEL=a",)),
        (
            {**SYSTEMD, "EFI/Linux/z.efi": unified("old", "9"), "EFI/Linux/a.efi": unified("new", "10")},
            "EFI/Linux/a.efi",
            ("new",),
        ),
        (
            {
                "loader/loader.conf": "default z*\n",
                "EFI/Linux/z.efi": unified("old", "9"),
                "EFI/Linux/a.efi": unified("new", "10"),
            },
            "EFI/Linux/z.efi",
            ("old",),
        ),
        ({**SYSTEMD, **entries("m-1"), "EFI/Linux/a.efi": unified("new")}, "EFI/Linux/a.efi", ("new",)),
        (
            {"loader/loader.conf": "default m-1\n", **entries("m-1"), "EFI/Linux/a.efi": unified("new")},
            "",
            ("root=LABEL=root",),
        ),
        ({"EFI/BOOT/BOOTX64.EFI": unified("direct")}, "EFI/BOOT/BOOTX64.EFI", ("direct",)),
    ],
    ids=["alone", "newest", "default", "before type 1", "type 1 by default", "removable"],
)
def test_unified_kernel_is_chosen(
    tmp_path: Path, files: Mapping[str, str | bytes], image: str, arguments: tuple[str, ...]
) -> None:
    entry = find_boot_entry([fat(tmp_path, files)])
    assert (entry.choice.image, entry.arguments) == (image, arguments)
    if image:
        assert (entry.choice.kernel, entry.initrds) == (".linux", (".initrd",))
        read_kernel, size = entry.open(".linux")
        kernel = b"MZ " + " ".join(arguments).encode()
        assert read_kernel(0, 1000) == kernel
        assert (read_kernel(size, 1), size) == (b"", len(kernel))
        read_at, _ = entry.open(".initrd")
        assert read_initrd(read_at, "it", frozenset({"nvme"}), lambda: None).modules == {"nvme"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"EFI/Linux/a.efi": unified("a"), "EFI/Linux/b.efi": unified("b")}, "which the firmware starts"),
        ({**entries("m-1"), "EFI/Linux/a.efi": unified("a")}, "which the firmware starts"),
        (
            {**KERNELS, "grub2/grub.cfg": BLSCFG, "EFI/Linux/a.efi": unified("a")},
            "GRUB starts m-5.14.0-427.el9.conf, and EFI/Linux has unified",
        ),
        (
            {**KERNELS, "grub2/grub.cfg": BLSCFG, "EFI/BOOT/BOOTX64.EFI": unified("a")},
            "EFI/BOOT starts BOOTX64.EFI, and GRUB m-5.14.0-427.el9.conf",
        ),
        ({**SYSTEMD, **entries("m-1"), "EFI/BOOT/BOOTX64.EFI": unified("a")}, "EFI/BOOT starts BOOTX64.EFI"),
        (
            {**SYSTEMD, **entries("m-1"), "EFI/Linux/a.efi": b"MZ"},
            "EFI/Linux/a.efi cannot be read: not an EFI",
        ),
        ({**SYSTEMD, "EFI/Linux/a.efi": unified("a")[:-1]}, "cannot be read: an area leaves"),
        ({**SYSTEMD, "EFI/Linux/a.efi": unified("a", profile=b"ID=b\n")}, "several profiles"),
        (
            {"EFI/Linux/a.efi": unified("a"), "EFI/Linux/a.efi.extra.d/b.addon.efi": b"MZ"},
            "a.efi.extra.d has programs that may add kernel arguments",
        ),
        ({"EFI/Linux/a.efi": unified("a"), "loader/addons/b.addon.efi": b"MZ"}, "may add kernel arguments"),
        ({"EFI/BOOT/BOOTX64.EFI": unified("a", profile=b"ID=b\n")}, "several profiles"),
    ],
)
def test_unified_kernel_that_may_not_boot_is_not_chosen(
    tmp_path: Path, files: Mapping[str, str | bytes], reason: str
) -> None:
    with pytest.raises(CannotTell, match=reason):
        find_boot_entry([fat(tmp_path, files)])


def test_loader_for_removable_media_that_is_no_unified_kernel_changes_nothing(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {**KERNELS, "grub2/grub.cfg": BLSCFG}
    files["EFI/BOOT/BOOTX64.EFI"] = build_efi_program()
    assert find_boot_entry([fat(tmp_path, files)]).choice.kernel == "/m-5.14.0-427.el9"

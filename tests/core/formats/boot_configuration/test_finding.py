"""Boot configurations, found on media."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FormatUnread
from image_service.core.formats.boot_configuration import finding
from image_service.core.formats.boot_configuration.boot_edit import BootEdit, Dialect
from image_service.core.formats.boot_configuration.editing import edit_config
from image_service.core.formats.boot_configuration.finding import find_configs
from tests.core.formats.boot_configuration.media import DEBIAN_INSTALLER, HARVESTER, MEDIA, Files

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("pool/main/a.deb", "dists/stable/Release", "casper/vmlinuz", "live/vmlinuz", "Packages/a/a.rpm")
# Files that no loader reads at boot.
UNREAD = {"boot/grub/loopback.cfg"}


def paths(files: Mapping[str, str | bytes], *boot_images: str) -> list[str]:
    return [file.path for file in find_configs(Files(files), boot_images).files]


@pytest.mark.parametrize("family", MEDIA)
def test_configurations_of_a_family_are_found(family: str) -> None:
    medium = Files({**MEDIA[family], **dict.fromkeys(PACKAGES, "x")})
    found = find_configs(medium)
    assert {file.path: file.content.decode() for file in found.files} == {
        path: text for path, text in MEDIA[family].items() if path not in UNREAD
    }
    assert [file.path for file in found.files] == sorted(file.path for file in found.files)
    assert {path.partition("/")[0] for path in medium.listed} & {
        path.partition("/")[0] for path in PACKAGES
    } == set()


def test_dialects() -> None:
    found = {
        path: next(file.dialect for file in find_configs(Files(files)).files if file.path == path)
        for files in MEDIA.values()
        for path in files
        if path not in UNREAD
    }
    expected = {"isolinux": Dialect.SYSLINUX, "grub": Dialect.GRUB, "loader": Dialect.SYSTEMD_BOOT}
    for path, dialect in found.items():
        if "BOOT.CFG" in path:
            assert dialect is Dialect.ESXI
        elif (
            path.rpartition("/")[2] in {"isolinux.cfg", "syslinux.cfg", "ISOLINUX.CFG"} or "isolinux/" in path
        ):
            assert dialect is Dialect.SYSLINUX
        else:
            assert dialect is expected["grub" if "grub" in path else "loader"], path


@pytest.mark.parametrize("family", MEDIA)
def test_edit_reaches_each_family(family: str) -> None:
    edit = BootEdit(append=("k=v",), delete=("k=v",), initrds=("x.img",))
    configs = find_configs(Files(MEDIA[family])).files
    edited = [edit_config(config, edit) for config in configs]
    assert sum(b"k=v" in config.content for config in edited) >= 1
    assert [b"/x.img" in config.content for config in edited] == [
        b"k=v" in config.content for config in edited
    ]
    assert [edit_config(config, edit) for config in edited] == edited
    assert [edit_config(config, BootEdit()) for config in configs] == list(configs)


def test_include_with_unknown_variable_is_named() -> None:
    assert find_configs(Files(DEBIAN_INSTALLER)).unresolved == (
        "EFI/debian/grub.cfg: /boot/grub/$grub_cpu-efi/grub.cfg",
    )
    assert find_configs(Files(HARVESTER)).unresolved == ()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("source $prefix/a.cfg", "boot/grub/a.cfg"),
        (". ${prefix}/a.cfg", "boot/grub/a.cfg"),
        ("configfile ($root)/boot/grub/a.cfg", "boot/grub/a.cfg"),
        ("if [ -f x ]; then source '/boot/grub/a.cfg'; fi", "boot/grub/a.cfg"),
        ("configfile (cd0)/BOOT/GRUB/A.CFG", "boot/grub/a.cfg"),
        ("set d=/boot\nsource $d/grub/../x/a.cfg", "boot/x/a.cfg"),
        ('d="($root)/boot"; source ${d}/x/a.cfg', "boot/x/a.cfg"),
        ("source $config_directory/a.cfg", "boot/grub/a.cfg"),
        ("source /boot/x/../../../boot/x/a.cfg", "boot/x/a.cfg"),
        ("source /boot/x/b.cfg", "boot/x/a.cfg"),
        ("echo source /boot/x/a.cfg", None),
        ("# source /boot/x/a.cfg", None),
        ("source", None),
        ("source /pool/a.cfg", None),
        ("source /absent.cfg", None),
        ("d=$d/$d/x; source $d", None),
    ],
)
def test_sourced_files(script: str, expected: str | None) -> None:
    files = {
        "boot/grub/grub.cfg": script,
        "boot/grub/a.cfg": "",
        "boot/x/a.cfg": "",
        "boot/x/b.cfg": "source $config_directory/a.cfg",
        "pool/a.cfg": "",
    }
    found = set(paths(files)) - {"boot/grub/grub.cfg", "boot/x/b.cfg"}
    assert found == ({expected} if expected else set())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("include a.cfg", "isolinux/a.cfg"),
        ("INCLUDE  /isolinux/a.cfg \r", "isolinux/a.cfg"),
        ("menu include A.CFG Title", "isolinux/a.cfg"),
        ("  label x\n  config a.cfg", "isolinux/a.cfg"),
        ("label x\nconfig /x/b.cfg /x/", "x/a.cfg"),
        ("include x/b.cfg", "isolinux/a.cfg"),
        ("label x\nkernel vesamenu.c32\nappend a.cfg", "isolinux/a.cfg"),
        ("label x\nkernel chain.c32\nappend a.cfg", None),
        ("text help\ninclude a.cfg\nendtext", None),
        ("# include a.cfg", None),
        ("include", None),
        ("menu title include a.cfg", None),
    ],
)
def test_included_files_are_relative_to_the_main_configuration(config: str, expected: str | None) -> None:
    files = {
        "isolinux/isolinux.cfg": config,
        "isolinux/a.cfg": "",
        "isolinux/x/b.cfg": "include a.cfg",
        "x/b.cfg": "include a.cfg",
        "x/a.cfg": "",
    }
    found = set(paths(files)) - {"isolinux/isolinux.cfg", "isolinux/x/b.cfg", "x/b.cfg"}
    assert found == ({expected} if expected else set())


def test_places() -> None:
    files = {
        "arch/boot/ISOLINUX.CFG": "",
        "BOOT/GRUB2/GRUB.CFG": "",
        "boot/grub/arm64-efi/grub.cfg": "",
        "boot/grub/fonts/grub.cfg": "",
        "efi/fedora/grub.cfg": "",
        "EFI/BOOT/grub.cfg": "",
        "boot.cfg": "title=another program\n",
        "loader/entries/a.conf": "",
        "loader/entries/a.txt": "",
        "grub.cfg": "",
    }
    assert paths(files, "/ARCH/boot/isolinux.bin") == [
        "EFI/BOOT/grub.cfg",
        "arch/boot/ISOLINUX.CFG",
        "boot/grub/arm64-efi/grub.cfg",
        "loader/entries/a.conf",
    ]
    assert paths({"A/grub.cfg": "", "efi/a/grub.cfg": "", "isolinux/x": ""}) == ["efi/a/grub.cfg"]
    assert paths({}) == []


def test_name_of_the_same_case_is_preferred() -> None:
    files = {"boot/grub/grub.cfg": "", "BOOT/grub/grub.cfg": "", "boot/grub/GRUB.CFG": ""}
    assert paths(files) == ["boot/grub/grub.cfg"]


def test_circles_of_includes_end() -> None:
    assert paths(
        {
            "isolinux/isolinux.cfg": "include a.cfg\ninclude isolinux.cfg\n",
            "isolinux/a.cfg": "include isolinux.cfg\nconfig a.cfg\n",
            "boot/grub/grub.cfg": "source /boot/grub/grub.cfg\nconfigfile $prefix/b.cfg\n",
            "boot/grub/b.cfg": "configfile /boot/grub/grub.cfg\n",
        }
    ) == ["boot/grub/b.cfg", "boot/grub/grub.cfg", "isolinux/a.cfg", "isolinux/isolinux.cfg"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({f"loader/entries/{n}.conf": "" for n in range(129)}, "more than 128 boot configurations"),
        (
            {"boot/grub/grub.cfg": "source /0", **{f"{n}": f"source /{n + 1}" for n in range(9)}},
            "include others more than 8 deep",
        ),
        ({"boot/grub/grub.cfg": "x" * (finding.MAX_FILE_BYTES + 1)}, "grub.cfg has more than 262144 bytes"),
        (
            {f"loader/entries/{n}.conf": "x" * finding.MAX_FILE_BYTES for n in range(5)},
            "all boot configurations have more than 1048576",
        ),
        (
            {
                "boot/grub/grub.cfg": "".join(f"source /{n}/a\n" for n in range(1100)),
                **{f"{n}/b": "" for n in range(1100)},
            },
            "in more than 1024 directories",
        ),
    ],
)
def test_limits(files: Mapping[str, str], expected: str) -> None:
    with pytest.raises(FormatUnread, match=expected):
        find_configs(Files(files))


def test_variables_do_not_grow() -> None:
    script = "set a=/aaaaaaaaaaaaaaaa\n" + "set a=$a$a\n" * 10_000 + "source $a\n"
    (unresolved,) = find_configs(Files({"boot/grub/grub.cfg": script})).unresolved
    assert len(unresolved) < 300

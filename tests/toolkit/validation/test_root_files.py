"""Roots of operating systems: links within them, and /usr on a file system of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.filesystems.detection import FileSystem
from image_service.toolkit.inspection.content import BootRecords, DiskContent, Volume
from image_service.toolkit.inspection.operating_system import find_operating_systems
from image_service.toolkit.validation.root_files import has_file, has_usr, read_text, system_roots
from tests.core.formats.boot_loader.trees import make_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

RELEASE = 'ID=x\nPRETTY_NAME="X 1"\n'
DEPLOYMENT = "ostree/deploy/x/deploy/0.0"


def volume(files: Mapping[str, str]) -> Volume:
    return Volume(None, FileSystem("ext4", root=make_tree(files)), lambda _offset, _length: b"", 0)


def found_names(*volumes: Volume) -> list[tuple[str, str]]:
    """Return name and path of each system that is named on a disk."""
    records = BootRecords(
        boot_code=False, bios_boot=None, active=(), efi_system=None, efi_loaders=(), el_torito=False
    )
    systems = find_operating_systems(DiskContent(None, None, records, volumes, None))
    return [(release.name, release.path) for release in systems.releases]


@pytest.mark.parametrize(
    ("files", "path"),
    [
        (
            {
                "etc/os-release": "->/etc/static/os-release",
                "etc/static": "->/nix/store/x/etc",
                "nix/store/x/etc/os-release": RELEASE,
            },
            "etc/os-release",
        ),
        (
            {"etc/os-release": "->../../../usr/lib/os-release", "usr/lib/os-release": RELEASE},
            "etc/os-release",
        ),
        (
            {
                f"{DEPLOYMENT}/etc/os-release": "->/usr/lib/os-release",
                f"{DEPLOYMENT}/usr/lib/os-release": RELEASE,
                "usr/lib/os-release.old": "",
            },
            f"{DEPLOYMENT}/etc/os-release",
        ),
        ({"lib/os-release": RELEASE, "bin/sh": ""}, "lib/os-release"),
        ({"etc/os-release": "->/gone", "usr/lib/os-release": RELEASE}, "usr/lib/os-release"),
    ],
)
def test_system_is_named_through_links(files: Mapping[str, str], path: str) -> None:
    assert found_names(volume(files)) == [("X 1", path)]


def test_separate_usr_names_its_system() -> None:
    root = volume({"etc/os-release": "->../usr/lib/os-release", "usr/lost+found/x": ""})
    assert found_names(volume({"lib/os-release": RELEASE}), root) == [("X 1", "lib/os-release")]


def test_separate_usr_belongs_to_its_root() -> None:
    usr = volume({"lib/os-release": RELEASE, "bin/cloud-init": ""})
    root = volume(
        {"etc/os-release": "->../usr/lib/os-release", "etc/fstab": "LABEL=x /\n", "usr/lost+found/x": ""}
    )
    other = volume({"etc/x": "", "usr/bin/sh": ""})
    found, second = system_roots([usr, root, other])
    assert read_text(found, "etc/os-release") == RELEASE
    assert has_file(found, "usr/bin/cloud-init")
    assert has_usr(found)
    assert not has_file(second, "usr/bin/cloud-init")
    (alone,) = system_roots([root])
    assert not has_usr(alone)


def test_link_to_another_file_system_counts_as_a_file() -> None:
    root = make_tree({"usr/bin/cloud-init": "->/opt/cloud-init", "usr/bin/cycle": "->cycle"})
    assert has_file(root, "usr/bin/cloud-init")
    assert has_file(root, "usr/bin/cycle")
    assert not has_file(root, "usr/bin/waagent")
    assert not has_file(root, "usr/sbin/waagent")

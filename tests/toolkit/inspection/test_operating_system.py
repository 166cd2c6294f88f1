from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.inspection.operating_system import (
    OperatingSystems,
    WindowsSigns,
    find_operating_systems,
)
from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.file_systems import write_tree
from tests.toolkit.coreos_disk import ENTRY, ESP_OFFSET, build_disk
from tests.toolkit.inspection.raw_disks import alter, content_of
from tests.toolkit.validation import windows_disk

if TYPE_CHECKING:
    from pathlib import Path

SECRET = b'{"ignition":{"version":"3.4.0"},"secret":"xyzzy"}'


def systems_of(path: Path) -> OperatingSystems:
    return find_operating_systems(content_of(path))


def make_system(directory: Path, files: dict[str, bytes]) -> Path:
    """Return a disk without partitions, an ext4 with files."""
    tree = write_tree(directory / "tree", files)
    run_client("mkfs.ext4", "-q", "-F", "-d", tree, directory / "disk", "8M")
    return directory / "disk"


def test_coreos_is_described_by_its_boot_partition(tmp_path: Path) -> None:
    coreos = systems_of(build_disk(tmp_path)).coreos

    assert coreos
    assert (coreos.partition, coreos.osname, coreos.platform) == (3, "test-coreos", "metal")
    assert (coreos.first_boot, coreos.ignition_config, coreos.network_keyfiles) == (True, False, False)
    (entry,) = coreos.entries
    assert (entry.title, entry.damage) == ("Test CoreOS 42.1 (ostree:0)", None)
    assert entry.kernel_arguments.startswith("$ignition_firstboot mitigations=auto,nosmt console=ttyS0")


def test_embedded_config_and_keyfiles_are_told_and_never_shown(tmp_path: Path) -> None:
    files = {
        "ignition.firstboot": None,
        "ignition/config.ign": SECRET,
        "coreos-firstboot-network/eth0.nmconnection": b"[wifi]\npsk=xyzzy\n",
    }
    coreos = systems_of(build_disk(tmp_path, files=files)).coreos

    assert coreos
    assert (coreos.first_boot, coreos.ignition_config, coreos.network_keyfiles) == (False, True, True)
    assert "xyzzy" not in repr(coreos)


def test_last_entry_has_the_platform(tmp_path: Path) -> None:
    entry = b"title Second\nversion 2\noptions ignition.platform.id=aws ostree=/ostree/boot.1/rhcos/1/0\n"
    files = {
        "loader.1/entries/ostree-2-test-coreos.conf": entry + b"linux /a\ninitrd /b\n",
        "loader.1/entries/ostree-0.conf": b"title Damaged\n",
    }
    coreos = systems_of(build_disk(tmp_path, files=files)).coreos

    assert coreos
    assert (coreos.platform, coreos.osname) == ("aws", "rhcos")
    assert [each.title for each in coreos.entries] == ["", "Test CoreOS 42.1 (ostree:0)", "Second"]
    assert coreos.entries[0].damage


def test_damaged_entry_of_a_coreos_is_described(tmp_path: Path) -> None:
    coreos = systems_of(build_disk(tmp_path, files={ENTRY: b"title nothing else\n"})).coreos

    assert coreos
    assert coreos.platform is None
    assert coreos.entries[0].damage == (
        "the entry of the boot loader has 0 lines of options; it must have one"
    )


def test_deployments_of_ostree_have_their_os_release(tmp_path: Path) -> None:
    (release,) = systems_of(build_disk(tmp_path)).releases

    assert (release.partition, release.name, release.values["VERSION_ID"]) == (4, "Test CoreOS 42.1", "42.1")
    assert release.path.startswith("ostree/deploy/test-coreos/deploy/")


@pytest.mark.parametrize("path", ["etc/os-release", "usr/lib/os-release"])
def test_os_release_is_read_as_a_shell_does(tmp_path: Path, path: str) -> None:
    text = b'# comment\nNAME=\'Some Linux\'\nID=some\n\nVERSION_ID="1 2"\nBROKEN="no end\nWRONG LINE\n'
    systems = systems_of(make_system(tmp_path, {path: text}))

    (release,) = systems.releases
    assert release.values == {"NAME": "Some Linux", "ID": "some", "VERSION_ID": "1 2", "BROKEN": '"no end'}
    assert (release.name, release.path, release.partition) == ("Some Linux", path, None)
    assert (systems.coreos, systems.windows) == (None, None)


def test_large_os_release_is_not_read(tmp_path: Path) -> None:
    assert systems_of(make_system(tmp_path, {"etc/os-release": b"ID=some\n" * 10_000})).releases == ()


def test_windows_is_told_by_its_loader_and_boot_code(tmp_path: Path) -> None:
    disk = build_disk(tmp_path)
    write_tree(tmp_path, {"Microsoft/Boot/bootmgfw.efi": b"MZ", "Microsoft/Boot/BCD": b"regf"})
    run_client("mcopy", "-s", "-i", f"{disk}@@{ESP_OFFSET}", tmp_path / "Microsoft", "::EFI")

    windows = systems_of(disk).windows
    assert windows
    assert windows.efi_files == ("EFI/Microsoft/Boot/bootmgfw.efi", "EFI/Microsoft/Boot/BCD")
    assert windows.ntfs == ()


def test_ntfs_is_of_windows_if_its_boot_code_loads_bootmgr(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(8 << 20))
    run_client("mkfs.ntfs", "-Q", "-q", "-F", disk)
    assert systems_of(disk).windows is None
    alter(disk, 514, "BOOTMGR".encode("utf-16-le"))
    assert systems_of(disk).windows == WindowsSigns((None,), (), (), None)


def test_registry_hives_are_named(tmp_path: Path) -> None:
    files = {f"Windows/System32/config/{name}": b"regf" for name in ("SYSTEM", "SOFTWARE", "other")}
    volume = windows_disk.ntfs(tmp_path / "volume", files)

    assert systems_of(volume).windows == WindowsSigns((), (), ("SOFTWARE", "SYSTEM"), None)


def test_damaged_ntfs_of_a_windows_is_described(tmp_path: Path) -> None:
    volume = windows_disk.ntfs(tmp_path / "volume", {})
    alter(volume, 514, "BOOTMGR".encode("utf-16-le"))
    mft = int.from_bytes(volume.read_bytes()[48:56], "little") * 4096
    alter(volume, mft, b"BAAD")

    windows = systems_of(volume).windows

    assert windows
    assert windows.damage == "the NTFS volume is damaged: record 0 is not what it must be"

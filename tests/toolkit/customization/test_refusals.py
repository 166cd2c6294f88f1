"""Disks and customizations that are refused, and what the refusal says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from image_service.toolkit.commands import main
from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.coreos_disk import (
    BLS_ENTRY,
    BOOT_OFFSET,
    ENTRY,
    INITRAMFS,
    MIB,
    ROOT_OFFSET,
    build_disk,
    edit_boot,
)
from tests.toolkit.customization.calling import CONFIG, KEYFILE, call, write_inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    CallCustomize = Callable[..., dict[str, Any]]


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CallCustomize:
    """Return a function that customizes a disk in both ways, each of which must fail and change nothing."""
    arguments = write_inputs(tmp_path)
    for program in ("debugfs", "e2fsck"):
        needs_client(program)

    def run(disk: Path, *words: str) -> dict[str, Any]:
        before = disk.read_bytes()
        reports = [
            call(capsys, disk, place, *words, *arguments) for place in (disk.with_name("o"), "--in-place")
        ]
        assert reports[0]["exit"] == reports[1]["exit"]
        assert not disk.with_name("o").exists()
        assert disk.read_bytes() == before
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        return reports[1]

    return run


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"ignition/config.ign": b"{}"}, "a config is already there: /ignition/config.ign"),
        ({"ignition.firstboot": None}, "has no /ignition.firstboot"),
        ({ENTRY: None}, "has no /loader/entries"),
        ({ENTRY: None, "loader.1/entries/README": b""}, "has no entry of the boot loader"),
        ({ENTRY: BLS_ENTRY.replace("options", "option").encode()}, "has 0 lines of options"),
        (
            {ENTRY: BLS_ENTRY.replace("platform.id=metal", "x").encode()},
            "do not contain ignition.platform.id",
        ),
        ({ENTRY: BLS_ENTRY.replace("initrd /", "initrd /../none/").encode()}, "no file ../none/"),
        ({INITRAMFS: None}, "no file ostree/test-coreos"),
        ({"grub2/grub.cfg": b"set x=1\n"}, "no marks of console settings"),
        ({"coreos/platforms.json": b"{"}, "is not JSON"),
        ({"ignition": b""}, "is not a directory"),
        ({"coreos-firstboot-network/Wired connection 1.nmconnection": b""}, "is already there"),
    ],
)
def test_boot_partition_that_is_none_of_coreos(
    tmp_path: Path, refuse: CallCustomize, files: dict[str, bytes | None], fault: str
) -> None:
    report = refuse(build_disk(tmp_path, files=files))
    assert report["exit"] == 6
    assert fault in report["error"]["reason"]
    assert report["input"]["format"] == "raw"


def test_journal_that_wants_replay(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    edit_boot(disk, "feature needs_recovery")
    assert "journal of the boot partition wants replay" in refuse(disk)["error"]["reason"]


@pytest.mark.parametrize("feature", ["mmp", "quota", "project,quota"])
def test_feature_that_the_tools_would_not_keep_is_named(
    feature: str, tmp_path: Path, refuse: CallCustomize
) -> None:
    disk = build_disk(tmp_path, features=f"{feature},metadata_csum")
    report = refuse(disk)
    assert f"has the feature {feature.replace(',', ', ')}, which is not" in report["error"]["reason"]
    assert report["exit"] == 6


def test_entry_in_its_inode(tmp_path: Path, refuse: CallCustomize) -> None:
    entry = b"options ignition.platform.id=metal\nlinux /k\ninitrd /i\n"
    disk = build_disk(
        tmp_path,
        features="inline_data,metadata_csum",
        files={ENTRY: entry, "k": bytes(5000), "i": bytes(5000)},
    )
    report = refuse(disk)
    assert report["exit"] == 6
    assert "without ext4's inline_data" in report["error"]["reason"]


@pytest.mark.parametrize("path", [ENTRY, "grub2/grub.cfg"])
def test_one_file_under_two_names(tmp_path: Path, refuse: CallCustomize, path: str) -> None:
    disk = build_disk(
        tmp_path, files={ENTRY: BLS_ENTRY.replace(f"initrd /{INITRAMFS}", f"initrd /{path}").encode()}
    )
    assert "of the boot partition are one file" in refuse(disk)["error"]["reason"]


def test_damaged_file_system(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    edit_boot(disk, "freeb 20 3")
    assert "e2fsck finds the file system of the boot partition damaged" in refuse(disk)["error"]["reason"]


def test_boot_partition_without_ext4(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    with disk.open("r+b") as file:
        file.seek(BOOT_OFFSET)
        file.write(bytes(4096))
    assert refuse(disk)["exit"] == 6


@pytest.mark.parametrize("options", [("name=boot", "name=other"), ("name=root", "name=boot")])
def test_disk_without_exactly_one_boot_partition(
    tmp_path: Path, refuse: CallCustomize, options: tuple[str, str]
) -> None:
    disk = build_disk(tmp_path, partition_names=dict([options]))
    assert "it must be one" in refuse(disk)["error"]["reason"]


@pytest.mark.parametrize("end", [ROOT_OFFSET + 4096, ROOT_OFFSET - MIB, BOOT_OFFSET + MIB, BOOT_OFFSET])
def test_disk_that_ends_within_what_boots(tmp_path: Path, refuse: CallCustomize, end: int) -> None:
    disk = build_disk(tmp_path)
    os.truncate(disk, end)
    report = refuse(disk)
    assert report["exit"] == 6
    assert f"is not in the disk of {end} bytes" in report["error"]["reason"]


def test_disk_whose_gpt_linux_ignores(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    with disk.open("r+b") as file:
        file.seek(454)
        file.write(b"\x3f")
    assert "begins in sector 63" in refuse(disk)["error"]["reason"]


def test_disk_without_partitions(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = tmp_path / "empty.raw"
    disk.write_bytes(bytes(1024 * 1024))
    reason = refuse(disk)["error"]["reason"]
    assert reason == f"{disk}: not a CoreOS disk: it has no partitions, not a GPT"


def test_format_that_is_not_customized(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = tmp_path / "disk.vmdk"
    run_client("qemu-img", "convert", "-f", "raw", "-O", "vmdk", build_disk(tmp_path), disk)
    report = refuse(disk)
    assert report["exit"] == 6
    assert "vmdk" in report["error"]["reason"]


def test_format_that_differs_from_the_declared_one(tmp_path: Path, refuse: CallCustomize) -> None:
    reason = refuse(build_disk(tmp_path), "--input-format=qcow2")["error"]["reason"]
    assert "declared to be qcow2, and its content is raw" in reason


def test_qcow2_with_a_backing_file(tmp_path: Path, refuse: CallCustomize) -> None:
    disk = tmp_path / "disk.qcow2"
    run_client("qemu-img", "create", "-f", "qcow2", "-F", "raw", "-b", build_disk(tmp_path), disk)
    assert refuse(disk)["exit"] == 6


def test_boot_partition_without_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "large.ign"
    config.write_bytes(CONFIG.replace(b"s3cret", b"x" * 70_000_000))
    disk = build_disk(tmp_path)
    before = disk.read_bytes()
    report = call(capsys, disk, "--in-place", f"--ignition={config}")
    assert report["exit"] == 7
    assert "bytes and" in report["error"]["reason"]
    assert disk.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--karg-append=a;reboot"], "has ';' outside double quotes"),
        (["--karg-delete=$x"], "has '$'"),
        (["--karg-append= "], "is empty"),
    ],
)
def test_kernel_arguments_that_grub_would_run(
    tmp_path: Path, refuse: CallCustomize, words: list[str], fault: str
) -> None:
    report = refuse(build_disk(tmp_path), *words)
    assert report["exit"] == 6
    assert fault in report["error"]["reason"]


@pytest.mark.parametrize("content", [b"s3cret", b"[]", b'{"ignition": {"version": "2.2.0"}}'])
def test_config_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    config = tmp_path / "config.ign"
    config.write_bytes(content)
    report = call(capsys, build_disk(tmp_path), "--in-place", f"--ignition={config}")
    assert report["exit"] == 6
    assert "Ignition config" in report["error"]["reason"]


@pytest.mark.parametrize("name", ['a" "b', 'a"', '"', "-R <2>", "back\\slash", "a' b", "a;quit", "#"])
def test_keyfile_may_have_any_name_of_networkmanager(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for program in ("debugfs", "e2fsck"):
        needs_client(program)
    keyfile = tmp_path / f"{name}.nmconnection"
    keyfile.write_bytes(KEYFILE)
    report = call(capsys, build_disk(tmp_path), "--in-place", f"--network-keyfile={keyfile}")
    assert report["exit"] == 0  # it reads what it has written


@pytest.mark.parametrize("name", ["..", ".hidden", "a\nquit", "a\tb", "a\x7f"])
def test_keyfile_with_a_name_that_networkmanager_ignores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    keyfile = tmp_path / f"{name}.nmconnection"
    keyfile.write_bytes(KEYFILE)
    report = call(capsys, build_disk(tmp_path), "--in-place", f"--network-keyfile={keyfile}")
    assert report["exit"] == 6
    assert "NAME.nmconnection" in report["error"]["reason"]


def test_two_keyfiles_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write_inputs(tmp_path)
    report = call(capsys, build_disk(tmp_path), "--in-place", *arguments, arguments[1])
    assert "two keyfiles are called" in report["error"]["reason"]


@pytest.mark.parametrize(
    "words",
    [
        ["DISK", "--ignition=c"],
        ["DISK", "OUT", "--in-place", "--ignition=c"],
        ["DISK", "OUT", "--ignition=c", "--platform=a b"],
        ["DISK", "OUT", "--ignition=c", "--input-format=vmdk"],
    ],
)
def test_invalid_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["customize", *words]) == 2
    assert "image-toolkit customize:" in capsys.readouterr().err


def test_missing_program_is_named_with_its_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = build_disk(tmp_path)
    monkeypatch.setattr(
        "image_service.common.programs.dependencies.shutil.which",
        lambda name, **_: None if name == "debugfs" else f"/usr/bin/{name}",
    )
    report = call(capsys, disk, "--in-place", *write_inputs(tmp_path))
    assert report["exit"] == 3
    assert "debugfs (Debian: e2fsprogs; Fedora: e2fsprogs)" in report["error"]["reason"]

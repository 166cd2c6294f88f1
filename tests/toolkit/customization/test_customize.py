"""Customized CoreOS disks: what is in them, and that nothing else has changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from image_service.core.formats.initrd import read_members
from image_service.core.provenance.dsse import load_signing_key, open_bundle
from image_service.core.provenance.statement_json import parse_statement
from image_service.core.provenance.undo import read_pristine, undo
from tests.acceptance.clients import run_client
from tests.toolkit.coreos_disk import (
    BLS_ENTRY,
    BOOT_OFFSET,
    BOOT_SIZE,
    DISK_SIZE,
    ENTRY,
    GRUB_CONFIG,
    INITRAMFS,
    MIB,
    ROOT_OFFSET,
    ROOT_SIZE,
    SELINUX_CONTEXT,
    boot_files,
    build_disk,
    check_boot,
    edit_boot,
    read_boot_file,
)
from tests.toolkit.customization.calling import CONFIG, KEYFILE, KEYFILE_NAME, call, write_inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    CallCustomize = Callable[..., dict[str, Any]]

_OPTIONS = (
    "$ignition_firstboot ignition.platform.id=aws"
    f" ostree=/ostree/boot.1/test-coreos/{'0123abcd' * 8}/0 console=tty0 console=ttyS0,115200n8 answer=42"
)


@pytest.fixture
def customize(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CallCustomize:
    arguments = write_inputs(tmp_path)
    return lambda *words: call(capsys, *words, *arguments, f"--scratch={tmp_path}")


def write_key(directory: Path) -> Path:
    key = directory / "key.pem"
    private = ed25519.Ed25519PrivateKey.generate()
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def as_raw(image: Path, image_format: str) -> Path:
    if image_format == "raw":
        return image
    raw = image.with_suffix(".as-raw")
    run_client("qemu-img", "convert", "-f", image_format, "-O", "raw", image, raw)
    return raw


def as_format(disk: Path, image_format: str, *options: str) -> Path:
    if image_format == "raw":
        return disk
    image = disk.with_suffix(f".{image_format}")
    run_client("qemu-img", "convert", "-f", "raw", "-O", image_format, *options, disk, image)
    return image


def assert_customized(disk: Path) -> None:
    """Compare the boot partition of a raw disk with what `write_inputs` asks for."""
    check_boot(disk)
    assert read_boot_file(disk, "ignition/config.ign") == CONFIG
    assert read_boot_file(disk, ENTRY).decode() == BLS_ENTRY.replace(
        BLS_ENTRY.splitlines()[2], f"options {_OPTIONS}"
    )
    assert read_boot_file(disk, "grub2/grub.cfg").decode() == GRUB_CONFIG.replace(
        "SETTINGS-START\n", "SETTINGS-START\nserial --speed=115200\nterminal_input serial console\n"
    )
    assert edit_boot(disk, f'cat "/coreos-firstboot-network/{KEYFILE_NAME}"').endswith(KEYFILE)
    initramfs = read_boot_file(disk, INITRAMFS)
    before = boot_files()[INITRAMFS]
    assert initramfs.startswith(before)
    members = read_members(initramfs[len(before) :])
    assert members[f"etc/coreos-firstboot-network/{KEYFILE_NAME}"].data == KEYFILE


def stat_of(disk: Path, path: str) -> str:
    return edit_boot(disk, f'stat "/{path}"').decode()


def assert_only_changes_differ(before: Path, after: Path, changes: list[list[int]]) -> None:
    """Compare two raw disks outside of the changes, which must be in the boot partition."""
    old, new = bytearray(before.read_bytes()), bytearray(after.read_bytes())
    assert old != new
    for offset, length in changes:
        assert BOOT_OFFSET <= offset <= offset + length <= BOOT_OFFSET + BOOT_SIZE
        old[offset : offset + length] = new[offset : offset + length] = bytes(length)
    assert old == new


@pytest.mark.parametrize(
    ("in_place", "image_format", "sector_bytes"),
    [(False, "raw", 512), (True, "raw", 4096), (True, "qcow2", 512), (False, "qcow2", 4096)],
)
def test_boot_partition_is_customized_and_nothing_else(
    tmp_path: Path, customize: CallCustomize, sector_bytes: int, image_format: str, *, in_place: bool
) -> None:
    disk = build_disk(tmp_path, sector_bytes=sector_bytes)
    source, target = as_format(disk, image_format), tmp_path / "target"
    before = source.read_bytes()
    if in_place:
        shutil.copy(source, target)
        report = customize(target, "--in-place")
    else:
        report = customize(source, target)
        assert source.read_bytes() == before
    assert report["exit"] == 0, report
    raw = as_raw(target, image_format)
    assert_customized(raw)
    assert_only_changes_differ(disk, raw, report["output"]["changes"])
    if image_format == "qcow2":
        run_client("qemu-img", "check", "-f", "qcow2", target)
    leftovers = {path.name for path in tmp_path.iterdir()} - {source.name, disk.name, raw.name, "target"}
    assert leftovers == {"config.ign", KEYFILE_NAME}


@pytest.mark.parametrize("cut", [8 * MIB, 4 * MIB])
@pytest.mark.parametrize("in_place", [False, True])
def test_other_partition_that_is_cut_or_missing_matters_not(
    tmp_path: Path, customize: CallCustomize, cut: int, *, in_place: bool
) -> None:
    data = "name=root\nsize=8MiB, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name=data"
    names = {"name=root": data}
    source = build_disk(tmp_path, disk_bytes=DISK_SIZE + 8 * MIB, partition_names=names)
    target = tmp_path / "target"
    os.truncate(source, ROOT_OFFSET + ROOT_SIZE + 8 * MIB - cut)
    before = tmp_path / "before"
    shutil.copy(source, before)
    report = customize(source, "--in-place") if in_place else customize(source, target)
    assert report["exit"] == 0, report
    assert_customized(source if in_place else target)
    assert_only_changes_differ(before, source if in_place else target, report["output"]["changes"])


def test_files_belong_to_root_and_secrets_are_for_it_alone(tmp_path: Path, customize: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    before = {path: stat_of(disk, path) for path in (ENTRY, INITRAMFS, "grub2/grub.cfg")}
    customize(disk, "--in-place")
    modes = {
        "ignition": "0700",
        "ignition/config.ign": "0600",
        "coreos-firstboot-network": "0755",
        f"coreos-firstboot-network/{KEYFILE_NAME}": "0600",
    }
    for path, mode in modes.items():
        text = stat_of(disk, path)
        assert f"Mode:  {mode} " in text
        assert "User:     0   Group:     0 " in text
    for path, text in before.items():
        owner = [line for line in text.splitlines() if line.startswith(("Inode:", "User:"))]
        assert [line.partition("Size:")[0] for line in owner] == [
            line.partition("Size:")[0]
            for line in stat_of(disk, path).splitlines()
            if line.startswith(("Inode:", "User:"))
        ]
    assert SELINUX_CONTEXT.encode() in edit_boot(disk, f"ea_get /{ENTRY} security.selinux")


def test_reports_digests_of_both_files_or_of_the_changes(tmp_path: Path, customize: CallCustomize) -> None:
    disk, out = build_disk(tmp_path), tmp_path / "out.raw"
    report = customize(disk, out)
    for path, described in ((disk, report["input"]), (out, report["output"])):
        assert described["size"] == path.stat().st_size
        assert described["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    report = customize(disk, "--in-place")
    content = disk.read_bytes()
    changed = b"".join(content[offset : offset + length] for offset, length in report["output"]["changes"])
    assert report["output"]["sha256"] == hashlib.sha256(changed).hexdigest()
    assert "sha256" not in report["input"]
    assert content == out.read_bytes(), "both forms make the same disk"


def test_equal_calls_make_equal_bytes(tmp_path: Path, customize: CallCustomize) -> None:
    disk = build_disk(tmp_path)
    edit_boot(disk, "set_super_value wtime 20200101000000")
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        customize(disk, out, "--no-digest")
    assert outs[0].read_bytes() == outs[1].read_bytes()
    written = int.from_bytes(disk.read_bytes()[BOOT_OFFSET + 1024 + 0x30 :][:4], "little")
    assert f"mtime: 0x{written:08x}" in stat_of(outs[0], "ignition/config.ign")


def test_large_initramfs_is_not_written_again(tmp_path: Path, customize: CallCustomize) -> None:
    initramfs = os.urandom(3_000_001)
    disk = build_disk(tmp_path, files={INITRAMFS: initramfs})
    report = customize(disk, "--in-place")
    assert sum(length for _, length in report["output"]["changes"]) < 100_000
    check_boot(disk)
    assert read_boot_file(disk, INITRAMFS).startswith(initramfs)


@pytest.mark.parametrize(
    ("features", "block_bytes"),
    [
        ("metadata_csum,64bit,metadata_csum_seed", 4096),
        ("metadata_csum,64bit", 1024),
        ("^metadata_csum,^64bit,^extent,^has_journal", 1024),
        ("^metadata_csum,uninit_bg", 2048),
        ("bigalloc", 4096),
    ],
)
def test_file_systems_of_other_features(
    tmp_path: Path, customize: CallCustomize, features: str, block_bytes: int
) -> None:
    disk = build_disk(tmp_path, features=features, block_bytes=block_bytes)
    assert customize(disk, "--in-place")["exit"] == 0
    assert_customized(disk)


def test_last_entry_of_two_is_edited(tmp_path: Path, customize: CallCustomize) -> None:
    newer = "loader.1/entries/ostree-2-test-coreos.conf"
    disk = build_disk(tmp_path, files={newer: BLS_ENTRY.encode()})
    customize(disk, "--in-place")
    assert read_boot_file(disk, ENTRY).decode() == BLS_ENTRY
    assert f"options {_OPTIONS}\n" in read_boot_file(disk, newer).decode()


def test_long_and_short_entries_get_their_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_inputs(tmp_path)
    disk = build_disk(tmp_path, block_bytes=1024)
    ignition = f"--ignition={tmp_path / 'config.ign'}"
    long = "x" * 3000
    grown = tmp_path / "grown"
    assert call(capsys, disk, grown, ignition, f"--karg-append={long}")["exit"] == 0
    check_boot(grown)
    assert long in read_boot_file(grown, ENTRY).decode()
    edit_boot(grown, "rm /ignition/config.ign", "rmdir /ignition")
    assert call(capsys, grown, "--in-place", ignition, f"--karg-delete={long}")["exit"] == 0
    check_boot(grown)
    assert read_boot_file(grown, ENTRY).decode() == BLS_ENTRY


def test_console_file_is_preferred_to_grub_cfg(tmp_path: Path, customize: CallCustomize) -> None:
    settings = b"# a\n# CONSOLE-SETTINGS-START\n# CONSOLE-SETTINGS-END\n"
    disk = build_disk(tmp_path, files={"grub2/console.cfg": settings})
    customize(disk, "--in-place")
    assert b"serial --speed" in read_boot_file(disk, "grub2/console.cfg")
    assert read_boot_file(disk, "grub2/grub.cfg").decode() == GRUB_CONFIG


@pytest.mark.parametrize("table", [None, json.dumps({"metal": {}}).encode()])
def test_unknown_platform_is_named_without_consoles(
    tmp_path: Path, customize: CallCustomize, table: bytes | None
) -> None:
    disk = build_disk(tmp_path, files={"coreos/platforms.json": table})
    customize(disk, "--in-place")
    assert b"console=ttyS0,115200n8 ignition.platform.id=aws" in read_boot_file(disk, ENTRY)
    assert read_boot_file(disk, "grub2/grub.cfg").decode() == GRUB_CONFIG


@pytest.mark.parametrize(
    ("named", "wanted", "status"), [("aws", "aws", 0), ("aws", "metal", 6), ("aws", "azure", 6)]
)
def test_disk_that_names_another_platform_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, wanted: str, status: int
) -> None:
    """As coreos-installer, but for ``--platform metal``, which that ignores."""
    entry = BLS_ENTRY.replace("platform.id=metal", f"platform.id={named}")
    disk = build_disk(tmp_path, files={ENTRY: entry.encode()})
    (tmp_path / "config.ign").write_bytes(CONFIG)
    words = [f"--ignition={tmp_path / 'config.ign'}", f"--platform={wanted}"]
    report = call(capsys, disk, "--in-place", *words)
    assert report["exit"] == status
    if status:
        assert "do not contain ignition.platform.id=metal" in report["error"]["reason"]
    else:
        assert read_boot_file(disk, ENTRY).decode() == entry


def test_output_has_the_permissions_of_a_new_file(tmp_path: Path, customize: CallCustomize) -> None:
    out = tmp_path / "out.raw"
    out.write_bytes(b"old")
    out.chmod(0o640)
    customize(build_disk(tmp_path), out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640


def test_disk_without_a_config_gets_kernel_arguments_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    disk, out, arguments = build_disk(tmp_path), tmp_path / "out", tmp_path / "arguments.json"
    arguments.write_text(json.dumps(["ignition.config.url=http://host/s3cret", "b=2"]))
    report = call(capsys, disk, out, "--karg-append=a=1", f"--karg-append-file={arguments}")
    assert report["exit"] == 0, report
    options = next(
        line for line in read_boot_file(out, ENTRY).decode().splitlines() if line.startswith("options")
    )
    assert options.endswith(" a=1 ignition.config.url=http://host/s3cret b=2")
    assert b"config.ign" not in edit_boot(out, "ls -p /ignition")
    check_boot(out)


@pytest.mark.parametrize("text", ["not json", '"a=s3cret"', '["a=s3cret", 1]'])
def test_file_without_kernel_arguments_is_refused(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = tmp_path / "arguments.json"
    arguments.write_text(text)
    report = call(capsys, "disk", tmp_path / "out", f"--karg-append-file={arguments}")
    assert (report["exit"], "is not a JSON array" in report["error"]["reason"]) == (6, True)


def test_platform_alone_is_a_customization(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    disk = build_disk(tmp_path)
    assert call(capsys, disk, tmp_path / "out", "--platform=aws")["exit"] == 0
    assert b"ignition.platform.id=aws" in read_boot_file(tmp_path / "out", ENTRY)
    same = call(capsys, disk, tmp_path / "same", "--platform=metal")
    assert same["output"]["changes"] == []
    assert (tmp_path / "same").read_bytes() == disk.read_bytes()


def test_nothing_to_customize_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = call(capsys, "disk", tmp_path / "out")
    assert (report["exit"], report["error"]["reason"][:20]) == (2, "nothing to customize")


@pytest.mark.parametrize(
    ("image_format", "options", "grows"),
    [("raw", (), False), ("qcow2", (), False), ("qcow2", ("-c", "-o", "cluster_size=4096"), True)],
)
def test_statement_of_a_copy_is_verified(
    tmp_path: Path, customize: CallCustomize, image_format: str, options: tuple[str, ...], *, grows: bool
) -> None:
    disk = as_format(build_disk(tmp_path), image_format, *options)
    out, key = tmp_path / "out", write_key(tmp_path)
    statement = tmp_path / "out.intoto.json"
    report = customize(disk, out, f"--statement={statement}", f"--signing-key={key}")
    assert report["exit"] == 0, report
    public = load_signing_key(key.read_bytes()).public
    stated = parse_statement(open_bundle(statement.read_bytes(), [public]))
    assert stated.base.sha256 == report["input"]["sha256"] == hashlib.sha256(disk.read_bytes()).hexdigest()
    assert stated.sha256 == report["output"]["sha256"]
    assert stated.config_sha256 == hashlib.sha256(CONFIG).hexdigest()
    content = out.read_bytes()
    assert bool(stated.tail) == (len(content) > disk.stat().st_size) == grows
    taken_apart = undo(lambda at, length: content[at : at + length], len(content), stated)
    assert taken_apart.faults == ()
    assert b"".join(read_pristine(lambda at, length: content[at : at + length], taken_apart.extents)) == (
        disk.read_bytes()
    )
    content = content[:-1] + b"?"
    assert undo(lambda at, length: content[at : at + length], len(content), stated).faults


def test_statement_of_a_device_is_refused(tmp_path: Path, customize: CallCustomize) -> None:
    out, statement = tmp_path / "out", tmp_path / "s"
    options = (f"--statement={statement}", f"--signing-key={write_key(tmp_path)}")
    report = customize("/dev/null", out, *options)
    assert report["exit"] == 2
    assert "--statement is of a copy of a file, and /dev/null is not one" in report["error"]["reason"]
    assert not statement.exists()


@pytest.mark.parametrize("arguments", [["--in-place"], ["out", "--no-digest"]])
def test_statement_that_cannot_be_made_is_refused(
    tmp_path: Path, customize: CallCustomize, arguments: list[str]
) -> None:
    key = write_key(tmp_path)
    disk = build_disk(tmp_path)
    before = disk.read_bytes()
    words = [str(tmp_path / word) if word.startswith("out") else word for word in arguments]
    report = customize(disk, f"--statement={tmp_path / 's'}", f"--signing-key={key}", *words)
    assert report["exit"] != 0
    assert "--statement" in report["error"]["reason"]
    assert disk.read_bytes() == before
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "out").exists()

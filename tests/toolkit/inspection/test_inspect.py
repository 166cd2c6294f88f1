"""``image-toolkit inspect`` on images in every format, and on those that are damaged or unsafe."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from image_service.toolkit.commands import main
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.filesystems.iso_builder import build_iso
from tests.toolkit.coreos_disk import BOOT_OFFSET, build_disk
from tests.toolkit.inspection.raw_disks import alter

HASHED_BYTES = "image_service.toolkit.inspection.inspect.HASHED_BYTES"
SECRET = b'{"ignition":{"version":"3.4.0"},"secret":"xyzzy"}'
FORMATS = {
    "qcow2": ("qcow2", "-O qcow2"),
    "qcow2, compressed": ("qcow2", "-c -O qcow2"),
    "vmdk": ("vmdk", "-O vmdk"),
    "vmdk, streamOptimized": ("vmdk", "-O vmdk -o subformat=streamOptimized"),
    "vhd, dynamic": ("vhd", "-O vpc -o force_size=on"),
    "vhd, fixed": ("vhd", "-O vpc -o subformat=fixed,force_size=on"),
    "vhdx": ("vhdx", "-O vhdx"),
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_disk(tmp_path_factory.mktemp("inspect"), files={"ignition/config.ign": SECRET})


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that inspects a file and returns the status and the JSON object."""

    def run(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
        status = main(["inspect", str(path), "--json", *options])
        output, errors = capsys.readouterr()
        assert errors == ""
        report = json.loads(output)
        assert report["exit"] == status
        return status, report

    return run


@pytest.mark.parametrize(("name", "options"), FORMATS.values(), ids=FORMATS)
def test_description_is_the_same_in_every_format(
    tmp_path: Path, disk: Path, inspect: Any, name: str, options: str
) -> None:
    image = tmp_path / "image"
    run_client("qemu-img", "convert", "-f", "raw", *options.split(), disk, image)
    status, expected = inspect(disk)

    found_status, found = inspect(image)

    assert status == found_status == 0
    assert found["image"]["format"] == found["input"]["format"] == name
    assert found["image"]["virtual_size"] == expected["image"]["virtual_size"] == disk.stat().st_size
    assert found["input"]["sha256"] == hashlib.sha256(image.read_bytes()).hexdigest()
    its_own = {"input", "image"}
    assert {key: value for key, value in found.items() if key not in its_own} == {
        key: value for key, value in expected.items() if key not in its_own
    }
    assert found["safe"]
    assert found["coreos"]["ignition_config"]


def test_sizes_are_those_of_the_file(disk: Path, inspect: Any) -> None:
    _, report = inspect(disk)

    assert report["input"]["size"] == report["image"]["size"] == disk.stat().st_size
    assert report["image"]["actual_size"] == disk.stat().st_blocks * 512


def test_digest_is_left_out_on_request(disk: Path, inspect: Any) -> None:
    _, report = inspect(disk, "--no-digest")

    assert (report["input"]["sha256"], report["left_out"]) == (None, [])


def test_digest_of_a_large_file_is_left_out_and_said_unless_it_is_wanted(
    disk: Path, inspect: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = hashlib.sha256(disk.read_bytes()).hexdigest()
    monkeypatch.setattr(HASHED_BYTES, disk.stat().st_size)
    assert inspect(disk)[1]["input"]["sha256"] == digest
    monkeypatch.setattr(HASHED_BYTES, disk.stat().st_size - 1)
    _, report = inspect(disk)
    _, wanted = inspect(disk, "--digest")

    assert report["input"]["sha256"] is None
    assert report["left_out"] == ["SHA-256: more than 16 GiB"]
    assert (wanted["input"]["sha256"], wanted["left_out"]) == (digest, [])
    assert main(["inspect", str(disk)]) == 0
    assert f"left out          {report['left_out'][0]}; --digest" in capsys.readouterr().out


def test_large_ova_is_compared_with_its_manifest(
    tmp_path: Path, inspect: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, image = tmp_path / "raw", tmp_path / "disk.ova"
    raw.write_bytes(bytes(1 << 20))
    needs_client("qemu-img")
    assert main(["convert", str(raw), str(image), "--scratch", str(tmp_path)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(HASHED_BYTES, 0)
    status, report = inspect(image)
    assert (status, report["safe"], len(report["left_out"])) == (0, True, 1)
    content = image.read_bytes()
    digest = content[content.index(b"disk1.vmdk)= ") :].split()[1]
    image.write_bytes(content.replace(digest, b"0" * len(digest)))

    status, report = inspect(image)

    assert (status, report["safe"]) == (6, False)
    assert "disk-disk1.vmdk in the OVA has the SHA256" in report["reasons"][0]
    assert inspect(image, "--no-digest")[1]["safe"]


def test_sparse_disk_of_8_tib_is_described_by_few_reads(tmp_path: Path, inspect: Any) -> None:
    sparse = tmp_path / "sparse.raw"
    with sparse.open("wb") as file:
        file.truncate(8 << 40)
    before = _bytes_read()
    status, report = inspect(sparse)

    assert _bytes_read() - before < 16 << 20
    assert (status, report["image"]["virtual_size"]) == (0, 8 << 40)
    assert report["left_out"]


def test_ignition_is_told_and_never_shown(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(disk)]) == 0
    text = capsys.readouterr().out

    assert "Ignition config   embedded" in text
    assert "xyzzy" not in text


def test_text_names_what_is_on_the_disk(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(disk), "--no-digest"]) == 0
    lines = capsys.readouterr().out.splitlines()

    for expected in (
        "format            raw",
        "safe              yes",
        "platform          metal",
        "boot records      BIOS boot partition 1, EFI system partition 2",
    ):
        assert expected in lines
    (boot,) = [line for line in lines if line.startswith("partition 3")]
    assert boot.startswith(
        "partition 3       Linux file system boot, 16777216 bytes (16.0 MiB) at offset 6291456: ext4 boot"
    )


def test_unsafe_image_is_described_and_its_reasons_are_named(tmp_path: Path, inspect: Any) -> None:
    secret = tmp_path / "host-file"
    secret.write_text("xyzzy" * 1000)
    image = tmp_path / "image.qcow2"
    run_client("qemu-img", "create", "-f", "qcow2", "-b", secret, "-F", "raw", image, "1M")

    status, report = inspect(image)

    assert (status, report["safe"]) == (6, False)
    assert any("backing file" in reason for reason in report["reasons"])
    assert report["error"]["reason"].startswith(str(image))
    assert report["image"]["format"] == "qcow2"
    assert report["input"]["sha256"] is None
    assert (report["volumes"], report["boot"], report["coreos"]) == ([], None, None)
    assert "xyzzy" not in json.dumps(report)


def test_damaged_file_system_does_not_end_the_call(tmp_path: Path, inspect: Any) -> None:
    disk = build_disk(tmp_path)
    alter(disk, BOOT_OFFSET + 1024 + 120, b"other")

    status, report = inspect(disk)

    assert status == 0
    assert report["volumes"][2]["file_system"] is None
    assert "checksum of its superblock" in report["volumes"][2]["damage"]
    assert report["coreos"] is None
    assert report["operating_systems"]


def test_damaged_directory_does_not_end_the_call(tmp_path: Path, inspect: Any) -> None:
    disk = build_disk(tmp_path, features="^metadata_csum,64bit")
    image = disk.read_bytes()
    alter(disk, image.index(b"ostree-1-test-coreos.conf") - 4, b"\1\0")  # the length of the directory's entry

    status, report = inspect(disk)

    assert status == 0
    assert report["coreos"]["damage"].startswith("a directory is damaged: its entry at")
    assert report["coreos"]["entries"] == []
    assert report["coreos"]["first_boot"]


def test_damaged_table_does_not_end_the_call(tmp_path: Path, inspect: Any) -> None:
    disk = build_disk(tmp_path)
    alter(disk, 512 + 60, b"other")
    alter(disk, disk.stat().st_size - 512 + 60, b"other")

    status, report = inspect(disk)

    assert status == 0
    assert "no valid GPT" in report["partition_table"]["damage"]


def test_iso_is_named_with_the_command_that_describes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inspect: Any
) -> None:
    iso = tmp_path / "live.iso"
    iso.write_bytes(build_iso({"file": b"content"}, volume_id="rhcos-42"))

    assert inspect(iso)[1]["iso"] == "rhcos-42"
    assert main(["inspect", str(iso)]) == 0
    assert "ISO 9660          rhcos-42; image-service inspect describes" in capsys.readouterr().out


def test_absent_file_is_a_fault_of_the_input(tmp_path: Path, inspect: Any) -> None:
    status, report = inspect(tmp_path / "none")

    assert status == 6
    assert "No such file" in report["error"]["reason"]


@pytest.mark.parametrize("kind", ["directory", "fifo", "empty"])
def test_what_is_no_image_is_refused_by_its_kind(tmp_path: Path, inspect: Any, kind: str) -> None:
    path = tmp_path / kind
    {"directory": Path.mkdir, "fifo": os.mkfifo, "empty": Path.touch}[kind](path)  # type: ignore[operator]

    status, report = inspect(path)

    assert (status, report["safe"]) == (6, False)
    assert report["reasons"]


def test_sparse_disk_of_8_tebibytes_takes_no_memory(tmp_path: Path, inspect: Any) -> None:
    image = tmp_path / "image.qcow2"
    run_client("qemu-img", "create", "-f", "qcow2", image, "8T")

    status, report = inspect(image)

    assert (status, report["image"]["virtual_size"]) == (0, 8 << 40)


def test_many_partitions_with_a_large_directory_are_described_in_part(tmp_path: Path, inspect: Any) -> None:
    for name in ("usr", "etc"):
        directory = tmp_path / "tree" / name
        directory.mkdir(parents=True)
        for number in range(500):
            (directory / f"{number:0250}").touch()
    run_client("mkfs.ext4", "-q", "-F", "-d", tmp_path / "tree", tmp_path / "volume", "16M")
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
        file.seek(1024 * 1024)
        file.write((tmp_path / "volume").read_bytes())
    start = "start=2048, size=32768\n"
    (tmp_path / "script").write_text("label: gpt\n" + start)
    run_client("sh", "-c", f"sfdisk -q {disk} < {tmp_path / 'script'}")
    image = bytearray(disk.read_bytes())
    repeat_partition(image, 128)
    disk.write_bytes(image)

    status, report = inspect(disk, "--no-digest")

    assert (status, len(report["volumes"])) == (0, 128)
    assert report["operating_systems"] == []


def repeat_partition(image: bytearray, count: int) -> None:
    """List the first partition of a GPT many times, with the right checksums of the primary copy."""
    entry = bytes(image[1024:1152])
    image[1024 : 1024 + 128 * count] = entry * count
    struct.pack_into("<I", image, 512 + 88, zlib.crc32(image[1024 : 1024 + 128 * 128]))
    struct.pack_into("<I", image, 512 + 16, 0)
    struct.pack_into("<I", image, 512 + 16, zlib.crc32(image[512 : 512 + 92]))


def _bytes_read() -> int:
    """Return how many bytes this process has read so far, from the page cache too."""
    (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")]
    return int(line.split()[1])

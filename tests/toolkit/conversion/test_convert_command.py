"""``image-toolkit convert``: reports, progress, exit statuses; OUT stays as it was when the call fails."""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pytest

from image_service.common.programs.dependencies import Dependency
from image_service.core.errors import Unprocessable
from image_service.core.formats.disk.partitions import read_partitions
from image_service.toolkit.commands import main
from image_service.toolkit.conversion import convert as conversion
from image_service.toolkit.conversion import ova
from image_service.toolkit.conversion.target import find_target
from image_service.toolkit.workspace import dependencies
from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.conversion.converting import MIB, SIZE, Form, compare_by_qemu, write_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


OLD = b"what was there before"


@attrs.frozen
class Outcome:
    """The result of a call."""

    status: int
    report: dict[str, Any]
    errors: str


Run: TypeAlias = "Callable[..., Outcome]"


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run ``convert --json`` in this process, and restore its signal handlers."""
    needs_client("qemu-img")
    (tmp_path / "scratch").mkdir()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}

    def run_here(*arguments: object) -> Outcome:
        words = ["convert", *map(str, arguments), "--scratch", str(tmp_path / "scratch"), "--json"]
        status = main(words)
        output, errors = capfd.readouterr()
        return Outcome(status, json.loads(output), errors)

    yield run_here
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_disk(tmp_path / "disk.raw")


def check_refused(run: Run, status: int, reason: str, source: Path, out: Path, *options: str) -> None:
    """Fail the test unless a call fails, leaves OUT alone, and leaves nothing beside it or in its scratch."""
    before = {path: path.stat() for path in out.parent.iterdir() if path.is_file()}
    content = out.read_bytes()
    outcome = run(source, out, "--force", *options)
    assert (outcome.status, outcome.report["exit"]) == (status, status), outcome.report
    assert reason in outcome.report["error"]["reason"]
    after = {path: path.stat() for path in out.parent.iterdir() if path.is_file()}
    assert after.keys() == before.keys()
    assert after[out].st_ino == before[out].st_ino
    assert out.read_bytes() == content
    assert list((out.parent / "scratch").iterdir()) == []


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "out.old"
    path.write_bytes(OLD)
    return path


def test_report_has_formats_sizes_and_digests(run: Run, raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "disk.vhd"
    outcome = run(raw, out, "--format", "vhd")
    digest = hashlib.sha256(raw.read_bytes()).hexdigest()
    assert outcome.report == {
        "verb": "convert",
        "exit": 0,
        "input": {"format": "raw", "size": SIZE, "virtual_size": SIZE, "sha256": digest},
        "output": {
            "format": "vhd",
            "subformat": "fixed",
            "size": SIZE + 512,
            "virtual_size": SIZE,
            "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
        },
        "error": None,
        "warnings": [],
    }
    assert outcome.errors == ""


def test_digests_can_be_left_out(run: Run, raw: Path, tmp_path: Path) -> None:
    outcome = run(raw, tmp_path / "out", "--no-digest")
    assert outcome.report["output"]["format"] == "qcow2"
    assert (outcome.report["input"]["sha256"], outcome.report["output"]["sha256"]) == (None, None)


@pytest.mark.parametrize("source_format", ["raw", "vhd", "ova"])
@pytest.mark.parametrize("name", ["raw", "qcow2", "vmdk", "vhd", "vhdx", "ova"])
def test_grown_disk_has_zeros_at_its_end(
    name: str, source_format: str, run: Run, raw: Path, tmp_path: Path
) -> None:
    source, out, grown = tmp_path / "source", tmp_path / "out", SIZE + 3 * MIB
    assert run(raw, source, "--format", source_format).status == 0
    outcome = run(source, out, "--from", source_format, "--to", name, "--size", grown)
    assert outcome.report["output"]["virtual_size"] == grown, outcome.report
    with raw.open("r+b") as file:
        file.truncate(grown)
    compare_by_qemu(raw, out, Form(name))


@pytest.mark.parametrize("source_format", ["raw", "qcow2"])
@pytest.mark.parametrize("name", ["raw", "vmdk", "vhd"])
def test_partition_gets_a_gpt_around_it(
    source_format: str, name: str, run: Run, raw: Path, tmp_path: Path
) -> None:
    partition, out, back = (tmp_path / file for file in (f"source.{source_format}", "out, 1", "back.raw"))
    run(raw, partition, "--format", source_format)
    done = run(partition, out, "--format", name, "--wrap-partition")
    assert done.status == 0, done.report
    run(out, back, "--format", "raw")
    disk, content = back.read_bytes(), raw.read_bytes()
    assert disk[MIB : MIB + len(content)] == content
    table = read_partitions(lambda offset, length: disk[offset : offset + length], len(disk))
    assert table
    assert (len(table.partitions), table.faults) == (1, ())
    again = run(out, back, "--wrap-partition", "--force")
    assert (again.status, "has a partition table" in str(again.report["error"])) == (6, True)


def test_disk_cannot_shrink(run: Run, raw: Path, old: Path) -> None:
    check_refused(run, 6, f"cannot shrink to {MIB}", raw, old, "--size", "1M")


@pytest.mark.parametrize("options", [(), ("--format", "raw"), ("--size", "1G")])
@pytest.mark.parametrize("name", ["out.old", "out.qcow2", "out"])
def test_existing_file_is_kept_without_force(
    name: str, options: tuple[str, ...], run: Run, raw: Path, tmp_path: Path
) -> None:
    out = tmp_path / name
    out.write_bytes(OLD)
    outcome = run(raw, out, *(options if name != "out.qcow2" else ()))
    assert outcome.status == 2
    assert outcome.report["error"]["reason"] == f"{out} exists; --force replaces it"
    assert out.read_bytes() == OLD


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("o.vhdx", (), "vhdx"),
        ("o.VHD", (), "vhd"),
        ("o.vmdk", ("--subformat", "monolithicSparse"), "vmdk"),
        ("o.ova", ("--ova-cpus", "4"), "ova"),
        ("o.raw", (), "raw"),
        ("o.img", (), "raw"),
        ("o.img", ("--format", "qcow2"), "qcow2"),
        ("o.qcow2", ("--compress",), "qcow2"),
        ("o", (), "qcow2"),
        ("o.2026-11", (), "qcow2"),
        ("o.2026-11", ("--format", "vhd"), "vhd"),
        (".vhdx", (), "qcow2"),
    ],
)
def test_format_is_that_of_the_suffix(  # noqa: PLR0913, PLR0917 - cases and fixtures
    name: str, options: tuple[str, ...], expected: str, run: Run, raw: Path, tmp_path: Path
) -> None:
    outcome = run(raw, tmp_path / name, "--no-digest", *options)
    assert outcome.status == 0, outcome.report
    assert outcome.report["output"]["format"] == expected


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("o.vhdx", ("--format", "qcow2"), "the suffix .vhdx is that of vhdx, and --format is qcow2"),
        ("o.vhd", ("--format", "vhdx"), "the suffix .vhd is that of vhd"),
        ("o.OVA", ("--format", "vmdk"), "the suffix .OVA is that of ova"),
        ("o.qcow2", ("--format", "raw"), "the suffix .qcow2 is that of qcow2"),
        ("o.img", ("--format", "vmdk"), "the suffix .img is that of raw"),
        ("o.raw", ("--compress",), "raw cannot be compressed"),
        ("o.vdi", (), "no format that convert writes has the suffix .vdi"),
        ("o.raw.gz", ("--format", "raw"), "the suffix .gz"),
    ],
)
def test_suffix_of_another_format_is_refused(  # noqa: PLR0913, PLR0917 - cases and fixtures
    name: str, options: tuple[str, ...], reason: str, run: Run, raw: Path, tmp_path: Path
) -> None:
    outcome = run(raw, tmp_path / name, *options)
    assert outcome.status == 2
    assert reason in outcome.report["error"]["reason"]
    assert not (tmp_path / name).exists()


def test_existing_file_is_replaced_and_keeps_its_permissions(run: Run, raw: Path, old: Path) -> None:
    old.chmod(0o640)
    assert run(raw, old, "--format", "raw", "--force").status == 0
    assert old.read_bytes() == raw.read_bytes()
    assert old.stat().st_mode & 0o777 == 0o640


def test_progress_rises_to_its_totals_in_each_phase(run: Run, raw: Path, tmp_path: Path) -> None:
    outcome = run(raw, tmp_path / "out.ova", "--format", "ova", "--progress", "json")
    lines = [json.loads(line) for line in outcome.errors.splitlines()]
    phases = list(dict.fromkeys(line["phase"] for line in lines))
    assert phases == ["convert", "archive", "digest"]
    for phase in phases:
        done = [line["done"] for line in lines if line["phase"] == phase]
        (total,) = {line["total"] for line in lines if line["phase"] == phase}
        assert done == sorted(set(done))
        assert (done[0], done[-1]) == (0, total)
    # qemu-img says more, of which as much is seen as the machine has time for.
    assert sum(0 < line["done"] < SIZE for line in lines if line["phase"] == "convert") >= 1


@pytest.mark.parametrize("name", ["json:{}", "nbd:localhost:1", "vvfat:x", "fat,size=1"])
def test_name_of_out_is_only_a_file_name(
    name: str, run: Run, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(raw, name).status == 0
    assert (tmp_path / name).is_file()


def test_boot_sector_without_partitions_is_a_raw_disk(run: Run, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(510) + b"\x55\xaa" + bytes(MIB))
    assert run(disk, tmp_path / "out", "--input-format", "raw").status == 0


def test_content_that_is_not_as_declared_is_refused_with_both_names(
    run: Run, raw: Path, old: Path, tmp_path: Path
) -> None:
    qcow2 = tmp_path / "image.qcow2"
    run_client("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2)
    check_refused(run, 6, "declared to be raw, and its content is qcow2", qcow2, old, "--input-format", "raw")
    check_refused(run, 6, "declared to be vmdk, and its content is raw", raw, old, "--input-format", "vmdk")


def test_image_that_names_another_file_is_refused(run: Run, old: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.qcow2"
    options = ("-F", "raw", "-b", "/etc/passwd", "-u")
    run_client("qemu-img", "create", "-q", "-f", "qcow2", *options, image, "1M")
    check_refused(run, 6, "backing", image, old)


@pytest.mark.parametrize(
    ("size", "arguments", "reason"),
    [
        (SIZE + 100, (), "sectors of 512 bytes"),
        (2041 << 30, ("--format", "vhd"), "2190433320960 at most (2040 GiB)"),
        (2041 << 30, ("--format", "vhd", "--subformat", "dynamic"), "2190433320960 at most"),
    ],
)
def test_impossible_result_is_refused(
    size: int, arguments: tuple[str, ...], reason: str, run: Run, old: Path
) -> None:
    disk = write_disk(old.with_name("disk"), size, {0: 512})
    check_refused(run, 6, reason, disk, old, *arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--subformat", "fixed"), "qcow2 has no subformat fixed"),
        (("--format", "vhd", "--subformat", "thick"), "only: fixed, dynamic"),
        (("--format", "vmdk", "--compress"), "only qcow2"),
        (("--format", "ova", "--ova-name", "a/b"), "not the name of an appliance"),
        (("--format", "ova", "--ova-cpus", "0"), "1 to 768 CPUs"),
    ],
)
def test_options_that_do_not_fit_each_other_are_invalid(
    arguments: tuple[str, ...], reason: str, run: Run, raw: Path, old: Path
) -> None:
    check_refused(run, 2, reason, raw, old, *arguments)


def test_limits_of_large_disks_are_those_of_the_formats() -> None:
    find_target("vhdx").check_size(64 << 40)
    find_target("vmdk").check_size(62 << 40)
    find_target("raw").check_size(1 << 50)
    for name, size in {"vhdx": (64 << 40) + 512, "vmdk": 63 << 40, "ova": 63 << 40}.items():
        with pytest.raises(Unprocessable, match="at most"):
            find_target(name).check_size(size)
    with pytest.raises(Unprocessable, match="sectors"):
        find_target("raw").check_size(0)


def test_out_must_be_another_file_than_the_image(run: Run, raw: Path, tmp_path: Path) -> None:
    (tmp_path / "hard-link").hardlink_to(raw)
    (tmp_path / "symlink").symlink_to(raw)
    for out in (raw, tmp_path / "hard-link"):
        check_refused(run, 2, "is the image that is converted", raw, out)
    outcome = run(raw, tmp_path / "symlink")
    assert outcome.status == 2
    assert raw.stat().st_size == SIZE
    assert (tmp_path / "symlink").is_symlink()


def test_missing_image_is_a_fault_of_the_input(run: Run, old: Path, tmp_path: Path) -> None:
    check_refused(run, 6, "No such file", tmp_path / "absent", old)


def test_missing_qemu_img_is_named_with_its_packages(
    run: Run, raw: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Dependency.find

    def find(dependency: Dependency) -> str | None:
        return None if dependency is dependencies.QEMU_IMG else found(dependency)

    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", find)
    check_refused(run, 3, "qemu-img (Debian: qemu-utils; Fedora: qemu-img)", raw, old)


@pytest.mark.parametrize(
    ("head", "name"), [(bytes(257) + b"ustar", "a tar archive"), (b"\x1f\x8b\x08", "a gzip file")]
)
def test_disk_that_would_be_an_archive_as_a_raw_file_is_refused_as_raw_alone(
    run: Run, old: Path, tmp_path: Path, head: bytes, name: str
) -> None:
    (tmp_path / "disk").write_bytes(head.ljust(MIB, b"\0"))
    image = tmp_path / "disk.qcow2"
    run_client("qemu-img", "convert", "-f", "raw", "-O", "qcow2", tmp_path / "disk", image)
    check_refused(run, 6, f"the disk begins like {name}", image, old, "--format=raw")
    assert run(image, tmp_path / "disk.vhdx", "--format=vhdx").status == 0
    assert run(image, tmp_path / "wrapped.raw", "--format=raw", "--wrap-partition").status == 0


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        (("-c", "-O", "qcow2"), ()),
        (("-O", "vmdk", "-o", "subformat=streamOptimized"), ()),
        (("-c", "-O", "qcow2"), ("--size", "1G")),
        (("-O", "vmdk", "-o", "subformat=streamOptimized"), ("--wrap-partition",)),
    ],
)
def test_damage_of_the_content_is_a_fault_of_the_input_with_its_place(
    options: tuple[str, ...], extra: tuple[str, ...], run: Run, old: Path, tmp_path: Path
) -> None:
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.write_bytes(random.Random(1).randbytes(64 * 1024).hex().encode() * 64)  # noqa: S311 - content
    run_client("qemu-img", "convert", *options, "-f", "raw", disk, image)
    content = image.read_bytes()
    start = len(content) // 2  # in the compressed data, which an inspection does not read
    length = (
        4096 if "vmdk" in options else 4 * 65536
    )  # of qcow2 the start of a cluster, which has no checksum
    image.write_bytes(content[:start] + b"\xff" * length + content[start + length :])
    check_refused(run, 6, f"{image}: its disk cannot be read from byte ", image, old, *extra)


def test_failure_of_qemu_img_on_a_whole_image_is_a_failed_conversion(
    run: Run, raw: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_service.toolkit.conversion.qemu_img.qemu_options", lambda _: ["-O", "nosuch"])
    check_refused(run, 5, "qemu-img", raw, old)


@pytest.mark.parametrize("name", ["vmdk", "vhd", "vhdx", "ova"])
def test_table_in_large_sectors_goes_into_no_format_of_small_ones(
    name: str, run: Run, old: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(48 * MIB))
    run_client("sh", "-c", f"printf 'g\\nn\\n\\n\\n\\nw\\n' | fdisk -b 4096 {disk}")
    check_refused(run, 6, "partition table in sectors of 4096 bytes", disk, old, "--format", name)
    for fits in ("raw", "qcow2"):
        assert run(disk, tmp_path / f"new.{fits}").status == 0


@pytest.mark.parametrize("name", ["raw", "qcow2", "ova"])
def test_vhdx_with_large_sectors_is_refused_before_qemu_img_sees_it(
    name: str, run: Run, raw: Path, old: Path, tmp_path: Path
) -> None:
    image = tmp_path / "disk.vhdx"
    with raw.open("r+b") as file:
        file.truncate(40 * MIB)
    assert run(raw, image).status == 0
    content = bytearray(image.read_bytes())
    entry = content.find(uuid.UUID("8141bf1d-a96f-4709-ba47-f233a8faab5f").bytes_le)
    place = entry // MIB * MIB + int.from_bytes(content[entry + 16 : entry + 20], "little")
    content[place : place + 4] = (4096).to_bytes(4, "little")
    image.write_bytes(content)
    check_refused(run, 6, "logical sectors of 4096 bytes", image, old, "--format", name)


def test_ova_is_compared_with_its_manifest(run: Run, raw: Path, old: Path, tmp_path: Path) -> None:
    image = tmp_path / "disk.ova"
    assert run(raw, image).status == 0
    content = image.read_bytes()
    digest = re.search(rb"disk1.vmdk\)= ([0-9a-f]{64})", content)
    assert digest
    image.write_bytes(content.replace(digest[1], b"0" * 64))
    check_refused(run, 6, "disk-disk1.vmdk in the OVA has the SHA256", image, old, "--format", "raw")


@pytest.mark.parametrize("wrong", ["size", "format"])
def test_wrong_result_of_qemu_img_is_a_failed_conversion(
    wrong: str, run: Run, raw: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_wrongly(_image: object, out: Path, *_: object) -> None:
        if wrong == "size":
            run_client("qemu-img", "create", "-q", "-f", "qcow2", out, str(SIZE + 512))
        else:
            out.write_bytes(b"KDMV" + bytes(65532))

    monkeypatch.setattr(conversion, "run_qemu_img", write_wrongly)
    check_refused(run, 5, "the result is", raw, old)


def test_no_room_is_found_before_anything_is_written(
    run: Run, raw: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_nothing(*_: object, **__: object) -> None:
        raise AssertionError("qemu-img was run")

    monkeypatch.setattr(conversion, "run_qemu_img", run_nothing)
    monkeypatch.setattr(ova, "run_qemu_img", run_nothing)
    check_refused(run, 7, "(--scratch-bytes)", raw, old, "--scratch-bytes", "500K")
    check_refused(run, 7, "(--scratch-bytes)", raw, old, "--scratch-bytes", "6M", "--format", "ova")


def test_time_limit_ends_the_call(run: Run, old: Path, tmp_path: Path) -> None:
    disk = write_disk(tmp_path / "disk", 64 * MIB, {0: 64 * MIB})
    check_refused(run, 8, "--timeout", disk, old, "--timeout", "0.01")
    check_refused(run, 8, "--timeout", disk, old, "--timeout", "1", "--io-rate", "1M")


@pytest.mark.parametrize("name", ["vm.ova", "my disk.ova", ".ova", "ä.ova"])
def test_appliance_is_named_after_the_file(name: str, run: Run, raw: Path, tmp_path: Path) -> None:
    assert run(raw, tmp_path / name, "--format", "ova", "--no-digest").status == 0
    members = run_client("tar", "-tf", tmp_path / name).decode().split()
    expected = {"vm.ova": "vm", "my disk.ova": "mydisk", ".ova": "ova", "ä.ova": "disk"}[name]
    assert members[0] == f"{expected}.ovf"


def test_text_names_the_file_and_its_digest(
    raw: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    needs_client("qemu-img")
    assert main(["convert", str(raw), str(tmp_path / "out.raw"), "--format", "raw"]) == 0
    output, errors = capfd.readouterr()
    digest = hashlib.sha256(raw.read_bytes()).hexdigest()
    assert output == (
        f"{tmp_path / 'out.raw'}: raw, a disk of {SIZE} bytes in a file of {SIZE} bytes, SHA-256 {digest}\n"
    )
    assert errors == ""

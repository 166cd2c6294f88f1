from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import run_client
from tests.core.families.live.test_families import BOOT, ESP_OPTIONS, make, make_esp
from tests.core.formats.filesystems.iso_builder import (
    CREATED,
    IGNITION_LENGTH,
    KERNEL_ARGUMENTS,
    VOLUME_ID,
    build_live_iso,
    build_other_iso,
    live_files,
)
from tests.core.formats.reading import fixture, read_layout

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

CONFIG = b'{"ignition": {"version": "3.3.0"}, "secret": "5e4w7"}\n'


def test_json_has_all_keys_of_a_pristine_iso(run: Run, base: Path, live_iso: bytes) -> None:
    """Programs rely on these names."""
    layout = read_layout(live_iso)
    kargs, minimal, files = layout.kernel_arguments, layout.minimal, layout.files
    assert kargs
    assert minimal
    assert files.kernel
    assert files.initrd
    assert files.rootfs
    assert json.loads(run("inspect", base, "--json").output) == {
        "volume_id": VOLUME_ID,
        "created": CREATED.isoformat(),
        "size": len(live_iso),
        "architecture": None,
        "customized": None,
        "ignition_area": {
            "offset": layout.ignition.offset,
            "length": IGNITION_LENGTH,
            "members": [],
            "unreadable": None,
        },
        "ramdisk_area": None,
        "kernel_arguments": {
            "default": KERNEL_ARGUMENTS,
            "current": KERNEL_ARGUMENTS,
            "capacity": kargs.size - 1,
            "areas": [
                {"path": area.name, "offset": area.offset, "length": kargs.size} for area in kargs.areas
            ],
        },
        "boot_files": {
            "kernel": {"path": "images/pxeboot/vmlinuz", "offset": files.kernel.offset, "length": 12},
            "initrd": {"path": "images/pxeboot/initrd.img", "offset": files.initrd.offset, "length": 12},
            "rootfs": {"path": "images/pxeboot/rootfs.img", "offset": files.rootfs.offset, "length": 12},
            "ins_file": None,
            "initrd_addrsize": None,
        },
        "minimal_iso": {"size": minimal.size, "sha256": minimal.sha256},
        "no_minimal_iso": None,
        "features": {"installer-config": True, "live-initrd-network": True},
    }


def test_customized_iso_lists_names_of_files_but_no_content(run: Run, base: Path, out: Path) -> None:
    config = base.with_name("config.ign")
    config.write_bytes(CONFIG)
    customize = ("customize", base, "--ignition", config, "--karg-append", "a=b", "-o", out)
    assert run(*customize).status == 0
    ran = run("inspect", out, "--json")
    described = json.loads(ran.output)
    assert described["ignition_area"]["members"] == [{"name": "config.ign", "size": len(CONFIG)}]
    assert described["customized"].startswith("the Ignition area at offset ")
    assert described["kernel_arguments"]["default"] == KERNEL_ARGUMENTS
    assert described["kernel_arguments"]["current"] == f"{KERNEL_ARGUMENTS} a=b"
    assert (described["minimal_iso"], described["no_minimal_iso"]) == (
        None,
        "only a pristine ISO makes its minimal one",
    )
    assert b"5e4w7" not in ran.output + run("inspect", out).output


def test_text_has_all_values(run: Run, base: Path, out: Path) -> None:
    config = base.with_name("config.ign")
    config.write_bytes(CONFIG)
    pristine = run("inspect", base).output.decode().splitlines()
    assert pristine[0] == f"volume            {VOLUME_ID}"
    assert "state             pristine" in pristine
    assert f"kernel arguments  {KERNEL_ARGUMENTS}" in pristine
    assert not any(line.startswith("by default") for line in pristine)
    assert "features          installer-config, live-initrd-network" in pristine
    run("customize", base, "--ignition", config, "--karg-append", "a=b", "-o", out)
    customized = run("inspect", out).output.decode().splitlines()
    assert f"                  config.ign: {len(CONFIG)} bytes" in customized
    assert f"kernel arguments  {KERNEL_ARGUMENTS} a=b" in customized
    assert f"by default        {KERNEL_ARGUMENTS}" in customized
    assert "minimal ISO       none: only a pristine ISO makes its minimal one" in customized


@pytest.mark.parametrize(
    ("iso", "architecture", "reason"),
    [
        ("embed-areas-2020-09.iso", None, "the ISO has no coreos/miniso.dat"),
        ("embed-areas-2023-03.s390x.iso", "s390x", "the ISO has no embed areas for kernel arguments"),
        ("embed-areas-2023-07.s390x.iso", "s390x", None),
        ("embed-areas-2023-07.x86_64.iso", None, None),
    ],
)
def test_real_isos_are_described(
    run: Run, base: Path, iso: str, architecture: str | None, reason: str | None
) -> None:
    base.write_bytes(fixture(iso))
    described = json.loads(run("inspect", base, "--json").output)
    assert (described["architecture"], described["no_minimal_iso"]) == (architecture, reason)
    assert (described["minimal_iso"] is None) == (reason is not None)
    text = run("inspect", base).output.decode()
    assert f"architecture      {architecture or 'unknown'}" in text
    assert (f"minimal ISO       none: {reason}" in text) == (reason is not None)


def test_recipe_with_wrong_digest_is_no_minimal_iso(run: Run, base: Path, live_iso: bytes) -> None:
    base.write_bytes(live_iso.replace(b"kernel data\n", b"kernel tada\n"))
    described = json.loads(run("inspect", base, "--json").output)
    assert described["minimal_iso"] is None
    assert "SHA-256" in described["no_minimal_iso"]


def test_control_characters_are_escaped(run: Run, base: Path) -> None:
    files = {
        **live_files(),
        "images/ignition.img": write_archive([Member("a\x1b[2J\nb\udcff", b"x")]).ljust(4096, b"\0"),
    }
    base.write_bytes(build_live_iso(files, volume_id="rhcos-\x1b[2J"))
    output = run("inspect", base).output.decode()
    assert "\x1b" not in output
    assert "volume            rhcos-\\x1b[2J\n" in output
    assert "a\\x1b[2J\\nb\\udcff: 1 bytes" in output
    described = json.loads(run("inspect", base, "--json").output)
    assert described["ignition_area"]["members"] == [{"name": "a\x1b[2J\nb\udcff", "size": 1}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"garbage", "no cpio header"), (lzma.compress(write_archive([])), "CRC64, which the kernel does not")],
    ids=["garbage", "skipped"],
)
def test_unreadable_area_is_described_with_the_reason(
    run: Run, base: Path, content: bytes, reason: str
) -> None:
    base.write_bytes(build_live_iso({**live_files(), "images/ignition.img": content.ljust(4096, b"\0")}))
    area = json.loads(run("inspect", base, "--json").output)["ignition_area"]
    assert area["members"] == []
    assert reason in area["unreadable"]
    assert area["unreadable"] in run("inspect", base).output.decode()


@pytest.mark.parametrize("features", [None, b"nonsense", b"[]"])
def test_missing_or_invalid_features_are_none(run: Run, base: Path, features: bytes | None) -> None:
    files = live_files()
    del files["coreos/features.json"]
    if features is not None:
        files["coreos/features.json"] = features
    base.write_bytes(build_live_iso(files))
    assert json.loads(run("inspect", base, "--json").output)["features"] is None
    assert "features          none" in run("inspect", base).output.decode()


def test_iso_of_another_system_is_described_as_one_of_no_family(run: Run, base: Path) -> None:
    base.write_bytes(build_other_iso())
    described = run("inspect", base)
    assert (described.status, described.errors) == (0, "")
    lines = [line.split(None, 1) for line in described.output.decode().splitlines()]
    assert lines[:2] == [["volume", "debian"], ["family", "generic"]]
    assert ["boot", "efi/redhat/grub.cfg (grub)"] in lines
    document = json.loads(run("inspect", base, "--json").output)
    assert document["boot_configurations"][0]["loader"] == "grub"
    assert "no family of this ISO" in document["no_config"]
    assert document["config_iso"] is None
    assert "has no known files for that" in document["no_network_boot"]


def test_arguments_of_a_unified_kernel_are_not_edited_also_beside_a_menu_of_grub(
    run: Run, base: Path
) -> None:
    esp = make_esp({"EFI/Linux/os.efi": b"MZ signed"}, base.parent)
    base.write_bytes(make("HYBRID", BOOT, *ESP_OPTIONS, str(esp)))
    document = json.loads(run("inspect", base, "--json").output)
    assert (document["family"], document["boot_configurations"]) == ("unified-kernel", [])
    (reason,) = document["not_found"]
    assert "unified kernel are in it (EFI/Linux/os.efi)" in reason


def test_iso_of_a_family_says_how_it_boots_and_what_does_not_see_an_edit(run: Run, base: Path) -> None:
    tree = base.parent / "tree"
    for path in (".treeinfo", "images/pxeboot/vmlinuz", "images/pxeboot/initrd.img", "images/install.img"):
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    run_client("grub-mkrescue", "-o", base, tree)
    lines = dict(line.split("  ", 1) for line in run("inspect", base).output.decode().splitlines())
    assert lines["config ISO"].strip() == "with the label OEMDRV"
    assert lines["network boot"].strip() == "yes"
    document = json.loads(run("inspect", base, "--json").output)
    (unchanged,) = document["unchanged"]
    at = int(unchanged.split()[3].rstrip(","))
    assert unchanged.startswith("HFS+ at offset ")
    assert base.read_bytes()[at + 1024 :].startswith(b"H+")

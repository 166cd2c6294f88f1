"""Checks of the customization of a CoreOS live ISO, whose secrets they do not show."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.families.live.editing import edit_medium
from image_service.core.families.live.families import detect_family
from image_service.core.families.live.medium import LiveMedium
from image_service.core.formats.initrd import compress_archive
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.newc import Member, write_archive
from image_service.tools.doctor.live_checks import check_coreos, check_family, read_coreos
from tests.core.families.live.test_families import BOOT, CASES, REFUSING, Case, make
from tests.core.formats.filesystems.iso_builder import (
    IGNITION_LENGTH,
    build_iso,
    build_live_iso,
    live_files,
)
from tests.core.formats.iso_edit.isos import base_of
from tests.core.formats.reading import read_layout, reader
from tests.tools.doctor.image_server import Served, serving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.tools.doctor.outcomes import CheckOutcome

SECRET = "hunter2"
CONFIG = b'{"ignition": {"version": "3.2.0"}, "passwd": "%s"}' % SECRET.encode()
ROOTFS = "images/pxeboot/rootfs.img"


def check(
    image: bytes, architecture: str | None = None, loaders: tuple[str, ...] = ()
) -> dict[str, tuple[str, str]]:
    outcomes = list(check_coreos(read_layout(image), reader(image), architecture, loaders))
    assert SECRET not in str(outcomes)
    return {outcome.name: (str(outcome.status), outcome.detail) for outcome in outcomes}


def with_config(config: bytes) -> bytes:
    archive = compress_archive(write_archive([Member("config.ign", config)]), IGNITION_LENGTH)
    return with_area(archive)


def with_area(content: bytes) -> bytes:
    return build_live_iso({**live_files(), "images/ignition.img": content.ljust(IGNITION_LENGTH, b"\0")})


@pytest.mark.parametrize(
    ("image", "status", "detail"),
    [
        (
            with_config(CONFIG),
            "ok",
            f"version 3.2.0, {len(CONFIG)} bytes, in an area of {IGNITION_LENGTH} bytes",
        ),
        (build_live_iso(), "warn", f"the area of {IGNITION_LENGTH} bytes has no config"),
        (with_config(CONFIG.replace(b"3.2.0", b"2.2.0")), "fail", "'ignition.version' is not 3.x.y"),
        (with_config(CONFIG[:-1]), "fail", "is not JSON"),
        (with_area(b"\x1f\x8b" + SECRET.encode() * 99), "fail", "the archive at offset 0"),
        (
            with_area(lzma.compress(write_archive([Member("config.ign", CONFIG)]))),
            "fail",
            "xz with CRC64, which the kernel does not read",
        ),
    ],
    ids=["valid", "none", "version 2", "not JSON", "damaged", "skipped"],
)
def test_config_is_judged_and_never_shown(image: bytes, status: str, detail: str) -> None:
    found = check(image)["ignition"]
    assert found[0] == status
    assert detail in found[1]


def test_kernel_arguments_must_be_equal_in_all_boot_loaders() -> None:
    image = build_live_iso()
    assert check(image)["kernel-arguments"][0] == "ok"
    changed = image.replace(b"ignition.firstboot", b"ignition.firstbooT", 1)
    layout = read_layout(image)
    outcomes = {each.name: each for each in check_coreos(layout, reader(changed), None, ())}
    assert outcomes["kernel-arguments"].status == "fail"


@pytest.mark.parametrize(
    ("kernel", "loaders", "status"),
    [
        ("x86_64", ("x86_64",), "ok"),
        ("x86_64", (), "ok"),
        ("x86_64", ("aarch64",), "fail"),
        (None, ("x86_64",), "skip"),
    ],
)
def test_architectures_of_kernel_and_loaders_are_compared(
    kernel: str | None, loaders: tuple[str, ...], status: str
) -> None:
    assert check(build_live_iso(), kernel, loaders)["architecture"][0] == status


def minimal(arguments: str) -> bytes:
    files: Mapping[str, bytes] = live_files(kernel_arguments=arguments)
    return build_live_iso({name: content for name, content in files.items() if name != ROOTFS})


def test_rootfs_is_in_the_iso_or_served_at_its_url() -> None:
    assert check(build_live_iso())["rootfs"][0] == "ok"
    assert check(minimal("ignition.firstboot"))["rootfs"][0] == "warn"
    with serving(b"root file system", path="/boot-artifacts/rootfs") as url:
        image = minimal(f"coreos.live.rootfs_url={url}?token={SECRET}")
        status, detail = check(image)["rootfs"]
        assert (status, "/…/rootfs?… has 16 bytes" in detail) == ("ok", True)
    assert check(image)["rootfs"][0] == "fail"
    assert check(minimal("coreos.live.rootfs_url=ftp://h/rootfs"))["rootfs"][0] == "fail"


def test_redirects_of_the_rootfs_are_followed_to_an_end() -> None:
    def redirect(served: Served) -> Served:
        is_last = served.number == 1
        moved = attrs.evolve(served, status=302, body=b"").having(Location="/x", Content_Length="0")
        return served if is_last else moved

    with serving(b"root", redirect) as url:
        assert check(minimal(f"coreos.live.rootfs_url={url}"))["rootfs"][0] == "ok"
        assert "more than 5 redirects" in check(minimal(f"coreos.live.rootfs_url={url}"))["rootfs"][1]


def test_other_isos_are_skipped_and_damaged_ones_fail() -> None:
    files = live_files()
    del files["images/ignition.img"]
    for image, status in (
        (build_iso({"a": b""}, volume_id="OTHER"), "skip"),
        (build_live_iso(files), "fail"),
    ):
        read_at = reader(image)
        outcomes: list[CheckOutcome] = list(
            read_coreos(read_iso9660(read_at, len(image)), read_at, len(image))
        )
        assert {str(outcome.status) for outcome in outcomes} == {status}
        assert len(outcomes) == 4


def check_of_family(data: bytes) -> list[tuple[str, str, str]]:
    iso = read_iso9660(reader(data), len(data))
    found = list(check_family(iso, reader(data), len(data)))
    assert SECRET not in str(found)
    return [(each.name, str(each.status), each.detail) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_family_and_its_config_are_recognized(case: Case) -> None:
    data = make(case.label, {**BOOT, **case.files})
    medium = LiveMedium(base_of(data))
    assert check_of_family(data)[0] == ("family", "ok", case.name)
    edit = detect_family(medium).place(medium, SECRET.encode())
    edited = edit_medium(medium, edit).apply(medium.base)
    (_, (_, status, detail)) = check_of_family(edited.read_at(0, edited.size))
    if case.name == "talos":
        assert (status, "config.iso" in detail) == ("skip", True)
        return
    assert (status, ": " in detail) == ("ok", True)
    (_, (_, status, detail)) = check_of_family(data)
    assert (status, "the ISO has no" in detail) == ("warn", True)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSING)
def test_family_without_a_config_is_skipped_with_the_reason(name: str) -> None:
    files, instead = REFUSING[name]
    (_, family, _), (_, config, detail) = check_of_family(make("LABEL", {**BOOT, **files}))
    assert (family, config) == ("skip" if name == "generic" else "ok", "skip")
    assert instead in detail or name == "generic"


def test_config_whose_argument_is_absent_is_a_warning() -> None:
    data = make("LABEL", {**BOOT, "casper/vmlinuz": b"", ".disk/info": b"Ubuntu", "autoinstall.yaml": b"x"})
    assert check_of_family(data)[1] == (
        "config",
        "warn",
        "no boot configuration has the argument autoinstall",
    )


def test_iso_of_coreos_has_its_own_checks() -> None:
    assert [each[:2] for each in check_of_family(build_live_iso())] == [("family", "ok"), ("config", "skip")]

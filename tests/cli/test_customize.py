from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import sys
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.newc import Member, write_archive
from image_service.core.images.canvas import derived_minimal_canvas, full_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.server.catalog.derived.derived_files import DerivedFileStore
from image_service.server.catalog.lifecycle.opening import open_base_image
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.settings.os_images import OsImage
from tests.acceptance.clients import run_client
from tests.core.families.coreos.miniso_builder import add_minimal_iso
from tests.core.families.live.test_families import BOOT, make
from tests.core.formats.filesystems.iso_builder import (
    IGNITION_LENGTH,
    KERNEL_ARGUMENTS,
    build_live_iso,
    live_files,
)
from tests.core.formats.reading import FIXTURES, fixture
from tests.core.images.building import read
from tests.server.catalog import full_isos
from tests.server.standalone.programs import put_ksvalidator

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.canvas import Canvas
    from tests.cli.conftest import Run


CONFIG = b'{"ignition": {"version": "3.3.0"}}\n'
RAMDISK = gzip.compress(write_archive([Member("etc/small", b"small")]), mtime=0)
# Does not fit after a config.
LARGE_RAMDISK = gzip.compress(
    write_archive([Member("etc/large", random.Random(7).randbytes(IGNITION_LENGTH + 1))]),  # noqa: S311
    mtime=0,
)
URL = "http://192.0.2.1/boot-artifacts/rootfs.img"
MINIMAL = ("--minimal", "--rootfs-url", URL)
EDITS = (
    KernelArgument(Operation.REPLACE, "ignition.platform.id=metal=qemu"),
    KernelArgument(Operation.APPEND, 'a="b c"'),
    KernelArgument(Operation.DELETE, "ignition.firstboot"),
    KernelArgument(Operation.APPEND, "console=ttyS0"),
)
GOLDEN_EDIT = (
    *("--karg-append", "foo=bar", "--karg-append", "baz"),
    *("--karg-delete", "ignition.firstboot", "--karg-replace", "ignition.platform.id=metal=qemu"),
)


def as_newc_crc(archive: bytes) -> bytes:
    return archive.replace(b"070701", b"070702")


@contextmanager
def opened(path: Path, openshift: str = "4.17") -> Iterator[BaseImage]:
    """A base image as the service opens it."""
    entry = OsImage("9.6", "x86_64", "full-iso", (openshift,), path.as_uri())
    with tempfile.TemporaryDirectory() as directory:
        image = open_base_image(entry, path, Path(directory) / "rhcos-sidecar", Interruption())
        yield image
        os.close(image.file.descriptor)


def sent(canvas: Canvas, customization: Customization) -> bytes:
    """The bytes that the service would send."""
    return read(compose(canvas, customization, "discovery.iso").extents.extents)


def options(directory: Path, customization: Customization) -> list[str]:
    """The options for a customization."""
    arguments: list[str] = []
    for name, content in (("ignition", customization.ignition), ("ramdisk", customization.ramdisk)):
        if content:
            (directory / name).write_bytes(content)
            arguments += [f"--{name}", str(directory / name)]
    for argument in customization.kernel_arguments:
        arguments += [f"--karg-{argument.operation.value}", argument.value]
    return arguments


@pytest.mark.parametrize("ramdisk", [None, RAMDISK], ids=["", "ramdisk"])
@pytest.mark.parametrize("edits", [(), EDITS], ids=["", "kargs"])
def test_full_iso_has_the_bytes_that_the_service_sends(
    run: Run, base: Path, out: Path, edits: tuple[KernelArgument, ...], ramdisk: bytes | None
) -> None:
    customization = Customization(CONFIG, edits, None, ramdisk)
    assert run("customize", base, *options(base.parent, customization), "-o", out).status == 0
    with opened(base) as image:
        assert out.read_bytes() == sent(full_canvas(image), customization)


@pytest.mark.parametrize("ramdisk", [None, RAMDISK], ids=["", "ramdisk"])
@pytest.mark.parametrize("edits", [(), EDITS], ids=["", "kargs"])
def test_minimal_iso_has_the_bytes_that_the_service_sends(
    run: Run, base: Path, out: Path, edits: tuple[KernelArgument, ...], ramdisk: bytes | None
) -> None:
    customization = Customization(CONFIG, edits, None, ramdisk)
    assert run("customize", base, *options(base.parent, customization), *MINIMAL, "-o", out).status == 0
    with opened(base) as image:
        assert out.read_bytes() == sent(spliced_minimal_canvas(image, URL), customization)


def test_only_the_output_is_written(run: Run, base: Path, out: Path, live_iso: bytes) -> None:
    ran = run("customize", base, "--karg-append", "a", "-o", out)
    assert (ran.status, ran.output, ran.errors) == (0, b"", "")
    assert list(out.parent.iterdir()) == [out]
    assert list(base.parent.iterdir()) == [base]
    assert base.read_bytes() == live_iso


@pytest.mark.parametrize("arguments", [("--karg-append", "a=b"), MINIMAL, ("--ramdisk", "ramdisk")])
def test_ignition_area_is_empty_without_a_config(
    run: Run, base: Path, out: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parent)
    Path("ramdisk").write_bytes(RAMDISK)
    assert run("customize", base, *arguments, "-o", out).status == 0
    described = json.loads(run("inspect", out, "--json").output)
    area = described["ignition_area"]
    there = out.read_bytes()[area["offset"] : area["offset"] + area["length"]]
    assert there == (RAMDISK if "--ramdisk" in arguments else b"").ljust(IGNITION_LENGTH, b"\0")


def test_customized_base_requires_reset(run: Run, base: Path, out: Path, live_iso: bytes) -> None:
    (base.parent / "config").write_bytes(CONFIG)
    customized = base.with_name("customized.iso")
    assert (
        run("customize", base, "--ignition", base.parent / "config", *GOLDEN_EDIT, "-o", customized).status
        == 0
    )
    refused = run("customize", customized, "--karg-append", "a", "-o", out)
    assert refused.status == 1
    assert "already customized: the Ignition area" in refused.errors
    assert not out.exists()
    assert run("customize", customized, "--reset", "-o", out).status == 0
    assert out.read_bytes() == live_iso
    assert run("customize", customized, "--reset", "--karg-append", "a", "-o", out, "--force").status == 0
    kernel_arguments = json.loads(run("inspect", out, "--json").output)["kernel_arguments"]
    assert kernel_arguments["current"] == f"{KERNEL_ARGUMENTS} a"


@pytest.mark.acceptance
@pytest.mark.parametrize("ramdisk", [None, LARGE_RAMDISK], ids=["", "ramdisk"])
def test_minimal_iso_without_recipe_is_derived(
    run: Run, base: Path, out: Path, ramdisk: bytes | None
) -> None:
    full_isos.x86_64(base)
    customization = Customization(CONFIG, EDITS, None, ramdisk)
    assert run("customize", base, *options(base.parent, customization), *MINIMAL, "-o", out).status == 0
    assert list(out.parent.iterdir()) == [out]
    assert out.read_bytes() == derived(base, customization)


@pytest.mark.acceptance
def test_derived_minimal_iso_is_written_to_standard_output(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_isos.x86_64(base)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    ran = run("customize", base, *MINIMAL, "-o", "-")
    assert ran.status == 0
    assert list(scratch.iterdir()) == []
    assert ran.output == derived(base, Customization(b"", (), None))


@pytest.mark.acceptance
def test_large_ramdisk_requires_a_derived_minimal_iso(run: Run, base: Path, out: Path) -> None:
    arguments = options(base.parent, Customization(b"", (), None, LARGE_RAMDISK))
    base.write_bytes(fixture("embed-areas-2023-07.x86_64.iso"))
    assert run("customize", base, *arguments, *MINIMAL, "-o", out).status == 0
    described = json.loads(run("inspect", out, "--json").output)
    assert described["ramdisk_area"]["members"] == [{"name": "etc/large", "size": IGNITION_LENGTH + 1}]
    assert URL in described["kernel_arguments"]["current"]


def derived(base: Path, customization: Customization, openshift: str = "4.17") -> bytes:
    """The bytes that the service would send of a derived minimal ISO."""
    with tempfile.TemporaryDirectory() as directory, opened(base, openshift) as image:
        files = DerivedFileStore(DataDir(Path(directory)), Interruption())
        template = files.get_minimal_iso(image)
        image_sent = sent(derived_minimal_canvas(image, template, URL), customization)
        os.close(template.file.descriptor)
    return image_sent


@pytest.mark.acceptance
def test_nmstatectl_is_added_on_request(run: Run, base: Path, out: Path) -> None:
    full_isos.x86_64(base, rootfs_with_nmstatectl(base.parent))
    customization = Customization(CONFIG, (), None, RAMDISK)
    arguments = options(base.parent, customization)
    assert run("customize", base, *arguments, *MINIMAL, "--nmstate", "-o", out).status == 0
    assert out.read_bytes() == derived(base, customization, "4.18")
    listed = run_client("xorriso", "-indev", out, "-ls", "/images").decode()
    assert "nmstate.img" in listed


def test_missing_nmstatectl_is_an_error(run: Run, base: Path, out: Path) -> None:
    """The recipe of this base is valid; its rootfs is a line of text."""
    refused = run("customize", base, *MINIMAL, "--nmstate", "-o", out)
    assert (refused.status, refused.errors.count("\n")) == (1, 1)
    assert "images/pxeboot/rootfs.img" in refused.errors
    assert list(out.parent.iterdir()) == []


def rootfs_with_nmstatectl(directory: Path) -> bytes:
    (directory / "tree" / "usr" / "bin").mkdir(parents=True)
    (directory / "tree" / "usr" / "bin" / "nmstatectl").write_bytes(b"#!/bin/true\n")
    squashfs = directory / "root.squashfs"
    run_client("mksquashfs", directory / "tree", squashfs, "-quiet", "-no-progress")
    return write_archive([Member("root.squashfs", squashfs.read_bytes())])


def test_recipe_of_an_iso_that_cannot_be_customized_is_not_used(run: Run, base: Path) -> None:
    base.write_bytes(add_minimal_iso(live_files(kernel_arguments="quiet")))
    assert json.loads(run("inspect", base, "--json").output)["minimal_iso"] is None


def test_recipe_with_wrong_digest_is_not_used(run: Run, base: Path, out: Path, live_iso: bytes) -> None:
    base.write_bytes(live_iso.replace(b"kernel data\n", b"kernel tada\n"))
    assert json.loads(run("inspect", base, "--json").output)["minimal_iso"] is None
    refused = run("customize", base, *MINIMAL, "-o", out)
    assert refused.status == 1
    assert list(out.parent.iterdir()) == []


def test_too_long_kernel_arguments_are_refused_with_both_sizes(run: Run, base: Path, out: Path) -> None:
    refused = run("customize", base, "--karg-append", "a" * 2000, "-o", out)
    assert (refused.status, refused.errors.count("\n")) == (1, 1)
    assert refused.errors.startswith("image-service: the kernel arguments take ")
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "content", "reason"),
    [
        ("--ignition", b'{"ignition": {"version": "2.2.0"}}', "'ignition.version' is not 3.x.y"),
        ("--ignition", b'{"ignition": ', "is not JSON"),
        ("--ignition", b"", "is not JSON"),
        ("--ramdisk", b"hello", "is not a ramdisk"),
        ("--ramdisk", b"", "is not a ramdisk"),
        (
            "--ramdisk",
            lzma.compress(write_archive([])),
            "the kernel does not read; use xz --check=crc32",
        ),
        ("--ramdisk", RAMDISK[:-9], "ends within"),
        ("--ramdisk", write_archive([Member("a", b"")])[:-124], "is not a ramdisk: no cpio header"),
    ],
)
def test_invalid_config_or_ramdisk_is_named(
    run: Run, base: Path, option: str, content: bytes, reason: str
) -> None:
    path, out = base.with_name("given"), base.with_name("out.iso")
    path.write_bytes(content)
    refused = run("customize", base, option, path, "-o", out)
    assert (refused.status, refused.errors.count("\n")) == (1, 1)
    assert refused.errors.startswith(f"image-service: {path}")
    assert reason in refused.errors
    assert "assisted-service" not in refused.errors
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--minimal",),
        ("--karg-append", "a", "--rootfs-url", URL),
        ("--minimal", "--rootfs-url", ""),
        ("--minimal", "--rootfs-url", "http://192.0.2.1/a b"),
        ("--minimal", "--rootfs-url", '"http://192.0.2.1/a&b"'),
        ("--minimal", "--rootfs-url", "http://192.0.2.1/a&b"),
        ("--karg-append", "a", "--nmstate"),
        ("--reset", *MINIMAL),
        ("--karg-append", "a\nb"),
        ("--karg-append", ""),
        ("--karg-replace", "a=b"),
        ("--karg", "a"),
        ("--ignit", "a"),
        ("--ignition", "-", "--ramdisk", "-"),
        ("--ignition", "a", "--ignition", "b"),
        ("--ramdisk", "a", "--network-keyfile", "b"),
    ],
)
def test_invalid_options_exit_with_2(run: Run, base: Path, out: Path, arguments: tuple[str, ...]) -> None:
    refused = run("customize", base, *arguments, "-o", out)
    assert refused.status == 2
    assert refused.errors.startswith("image-service customize: ")
    assert refused.errors.endswith("\nTry 'image-service customize --help'.\n")
    assert refused.errors.count("\n") <= 3
    assert not out.exists()


@pytest.mark.parametrize("more", [(), MINIMAL], ids=["full", "minimal"])
def test_absent_kernel_argument_is_noted(run: Run, base: Path, out: Path, more: tuple[str, ...]) -> None:
    arguments = ("--karg-delete", "nosuch", "--karg-replace", "no=such=thing", *GOLDEN_EDIT)
    ran = run("customize", base, *arguments, *more, "-o", out)
    assert ran.status == 0
    assert ran.errors == (
        "image-service: note: --karg-delete changes nothing: nosuch is not among the kernel arguments\n"
        "image-service: note: --karg-replace changes nothing: no=such is not among the kernel arguments\n"
    )


def test_names_of_coreos_installer_are_aliases(run: Run, base: Path, out: Path) -> None:
    config, other = base.with_name("config.ign"), out.with_name("other.iso")
    config.write_bytes(CONFIG)
    arguments = ["--ignition", str(config), *GOLDEN_EDIT]
    aliases = [argument.replace("--", "--live-") for argument in arguments]
    assert run("customize", base, *arguments, "-o", out).status == 0
    assert run("customize", base, *aliases, "-o", other).status == 0
    assert out.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://192.0.2.1/r?a=1&b=2", "has '&' at position 22, "),
        ("http://192.0.2.1/r?a=1&b=2", "write %26 "),
        ("http://192.0.2.1/a b", "write %20 "),
        ("http://192.0.2.1/ä", "write %C3%A4 "),
        ('"http://192.0.2.1/a"', "write %22 "),
        ("http://192.0.2.1/{a}", "write %7B "),
    ],
)
def test_hint_of_a_refused_rootfs_url_can_be_followed(
    run: Run, base: Path, out: Path, url: str, hint: str
) -> None:
    refused = run("customize", base, "--minimal", "--rootfs-url", url, "-o", out)
    assert refused.status == 2
    assert hint in refused.errors
    followed = quote(url, safe=":/?=%")
    assert run("customize", base, "--minimal", "--rootfs-url", followed, "-o", out).status == 0


@pytest.mark.parametrize(
    ("compress", "noted"),
    [(bz2.compress, "CONFIG_RD_BZIP2"), (zstd.compress, "before 5.9"), (as_newc_crc, "before 5.19")],
)
def test_doubt_about_a_ramdisk_is_noted(
    run: Run, base: Path, out: Path, compress: Callable[[bytes], bytes], noted: str
) -> None:
    ramdisk = base.with_name("ramdisk")
    ramdisk.write_bytes(compress(write_archive([Member("a", b"")])))
    made = run("customize", base, "--ramdisk", ramdisk, "-o", out)
    assert (made.status, made.errors.count("\n")) == (0, 1)
    assert made.errors.startswith(f"image-service: note: {ramdisk}: ")
    assert noted in made.errors
    assert out.exists()


@pytest.mark.parametrize("name", ["eth0", ".hidden.nmconnection", "eth0.nmconnection~"])
def test_keyfile_that_networkmanager_would_not_read_is_refused(
    run: Run, base: Path, out: Path, name: str
) -> None:
    keyfile = base.with_name(name)
    keyfile.write_bytes(b"")
    refused = run("customize", base, "--network-keyfile", keyfile, "-o", out)
    assert (refused.status, refused.errors.count("\n")) == (1, 1)
    assert "NAME.nmconnection" in refused.errors
    assert not out.exists()


@pytest.mark.parametrize("more", [(), MINIMAL], ids=["full", "minimal"])
def test_keyfiles_are_packed_into_a_ramdisk(run: Run, base: Path, out: Path, more: tuple[str, ...]) -> None:
    names = ("eth1.nmconnection", "eth0.nmconnection", "Wired +ä:1.nmconnection")
    for name in names:
        base.with_name(name).write_text(f"[connection]\nid={name}\n")
    options = [word for name in names for word in ("--network-keyfile", base.with_name(name))]
    assert run("customize", base, *options, *more, "-o", out).status == 0
    members = json.loads(run("inspect", out, "--json").output)["ignition_area"]["members"]
    assert [member["name"] for member in members] == [
        "etc/coreos-firstboot-network/Wired +ä:1.nmconnection",
        "etc/coreos-firstboot-network/eth0.nmconnection",
        "etc/coreos-firstboot-network/eth1.nmconnection",
    ]


def test_keyfiles_of_one_name_are_refused(run: Run, base: Path, out: Path) -> None:
    refused = run("customize", base, "--network-keyfile", "a/eth0", "--network-keyfile", "b/eth0", "-o", out)
    assert (refused.status, refused.errors.count("\n")) == (1, 1)
    assert "different names" in refused.errors


def test_keyfile_is_refused_by_an_iso_that_would_not_read_it(run: Run, base: Path, out: Path) -> None:
    base.write_bytes(build_live_iso({**live_files(), "coreos/features.json": b"{}"}))
    keyfile = base.with_name("eth0.nmconnection")
    keyfile.write_bytes(b"")
    refused = run("customize", base, "--network-keyfile", keyfile, "-o", out)
    assert (refused.status, refused.errors.count("\n")) == (1, 1)
    assert "live-initrd-network" in refused.errors
    assert not out.exists()


GOLDEN = json.loads((FIXTURES / "golden.json").read_bytes())["iso"] if FIXTURES.exists() else {}
"""SHA-256 of coreos-installer's results, by name of the ISO."""


def golden(kind: str) -> list[tuple[str, object]]:
    """The ISOs with a result of this kind, and the result."""
    return [(name, made[key]) for name, made in GOLDEN.items() for key in made if key.startswith(kind)]


@pytest.mark.parametrize(("name", "digest"), golden("kargs modify"))
def test_kernel_arguments_equal_those_of_coreos_installer(
    run: Run, base: Path, out: Path, name: str, digest: str
) -> None:
    base.write_bytes(fixture(name))
    assert run("customize", base, *GOLDEN_EDIT, "-o", out).status == 0
    assert sha256(out.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(("name", "noted"), golden("extract minimal-iso --rootfs-url"))
def test_minimal_iso_equals_that_of_coreos_installer(
    run: Run, base: Path, out: Path, name: str, noted: object
) -> None:
    base.write_bytes(fixture(name))
    url = "https://example.com/rootfs.img"
    assert run("customize", base, "--minimal", "--rootfs-url", url, "-o", out).status == 0
    content = out.read_bytes()
    assert {"size": len(content), "sha256": sha256(content).hexdigest()} == noted


@pytest.mark.acceptance
@pytest.mark.parametrize("name", GOLDEN)
def test_coreos_installer_reads_the_config_and_restores_the_base(
    run: Run, base: Path, out: Path, name: str
) -> None:
    base.write_bytes(fixture(name))
    config = base.with_name("config.ign")
    config.write_bytes(CONFIG)
    assert run("customize", base, "--ignition", config, "-o", out).status == 0
    assert run_client("coreos-installer", "iso", "ignition", "show", out) == CONFIG
    assert run_client("coreos-installer", "iso", "reset", "-o", "-", out) == base.read_bytes()


def test_base_without_kernel_argument_areas_is_refused(run: Run, base: Path, out: Path) -> None:
    files = {name: content for name, content in live_files().items() if name != "coreos/kargs.json"}
    base.write_bytes(build_live_iso(files))
    refused = run("customize", base, "--karg-append", "a", "-o", out)
    assert refused.status == 1
    assert "has no embed area" in refused.errors


@pytest.mark.slow
def test_doubts_of_the_familys_own_program_are_noted(
    run: Run, base: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ksvalidator(monkeypatch)
    base.write_bytes(make("Fedora", {**BOOT, ".treeinfo": b"[general]"}))
    config = base.parent / "ks.cfg"
    for kickstart, note in (
        ("rootpw hunter2\n", ""),
        ("rootpw hunter2 --hunter3\n", "ksvalidator does not accept the kickstart file: line 1: Unexpected"),
    ):
        config.write_text(kickstart)
        done = run("customize", base, "--config", config, "-o", out, "--force")
        assert (done.status, out.exists()) == (0, True)
        assert note in done.errors
        assert bool(note) == bool(done.errors)
        assert "hunter" not in done.errors

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import BaseImageError, Unavailable
from image_service.server.catalog.derived.derivation import RAMDISK_BYTES, derive_minimal_iso
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.media import master
from tests.core.formats.filesystems.iso_builder import CREATED, KERNEL_ARGUMENTS, VOLUME_ID, live_files
from tests.core.formats.reading import fixture, read_layout
from tests.server.catalog import full_isos, mastered
from tests.server.catalog.fake_xorriso import fake_xorriso
from tests.server.catalog.full_isos import FULL_ISOS, open_iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.core.images.base_image import BaseImage

MINIMAL_ARGUMENTS = KERNEL_ARGUMENTS.replace(f"coreos.liveiso={VOLUME_ID} ", "")
NMSTATE = b"nmstatectl" * 1000
REMOVED = {"IMAGES/PXEBOOT/ROOTFS.IMG"}
ADDED = {"IMAGES/ASSISTED.IMG", "IMAGES/NMSTATE.IMG"}
REPLACED = {"COREOS/KARGS.JSO", "EFI/REDHAT/GRUB.CFG", "BOOT/GRUB/GRUB.CFG", "ISOLINUX/ISOLINUX.CFG"}
REWRITTEN = {"ISOLINUX/ISOLINUX.BIN", "ISOLINUX/BOOT.CAT", "BOOT.CAT"}  # contain their own address
OLDER = ["embed-areas-2020-09.iso", "embed-areas-2021-01.iso", "embed-areas-2021-09.iso"]
NEWER = ["embed-areas-2022-02.iso", "embed-areas-2023-07.x86_64.iso"]


@attrs.frozen
class Derivation:
    """Derives from one base image.

    Args:
        base: the full ISO.
        directory: holds what is made, scratch files and nothing else.
    """

    base: BaseImage
    directory: Path

    @property
    def target(self) -> Path:
        """The minimal ISO."""
        return self.directory / "data" / "rhcos-minimal.iso"

    def derive(self, nmstate: bytes | None = NMSTATE, interruption: Interruption | None = None) -> bytes:
        """Make the minimal ISO and read it."""
        for name in ("data", "scratch"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        archive = self.directory / "nmstate.img"
        archive.write_bytes(nmstate or b"")
        scratch, interruption = self.directory / "scratch", interruption or Interruption()
        derive_minimal_iso(self.base, archive if nmstate else None, self.target, scratch, interruption)
        return self.target.read_bytes()

    def left(self) -> list[str]:
        """What is there but for the archive."""
        paths = [path for name in ("data", "scratch") for path in (self.directory / name).rglob("*")]
        return sorted(path.name for path in paths)


@pytest.fixture(params=FULL_ISOS)
def architecture(request: pytest.FixtureRequest) -> str:
    """Each in turn."""
    return str(request.param)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Path], Derivation]]:
    """Open base images, and close them again."""
    opened = []

    def derivation(path: Path, architecture: str = "x86_64") -> Derivation:
        base = open_iso(path, architecture)
        opened.append(base.file.descriptor)
        return Derivation(base, tmp_path / "derivation")

    yield derivation
    for descriptor in opened:
        os.close(descriptor)


@pytest.fixture
def full(architecture: str, tmp_path: Path) -> Path:
    """The full ISO of an architecture."""
    path = tmp_path / f"{architecture}.iso"
    FULL_ISOS[architecture](path)
    return path


@pytest.fixture
def derivation(full: Path, architecture: str, make: Callable[[Path, str], Derivation]) -> Derivation:
    """Derives from the full ISO."""
    return make(full, architecture)


@pytest.fixture
def x86_64(tmp_path: Path, make: Callable[[Path], Derivation]) -> Derivation:
    """Derives from an ISO for BIOS and UEFI."""
    path = tmp_path / "x86_64.iso"
    full_isos.x86_64(path)
    return make(path)


# Content.


def test_minimal_iso_has_all_files_but_the_rootfs(derivation: Derivation, full: Path) -> None:
    before, after = full.read_bytes(), derivation.derive()
    old, new = mastered.files(before), mastered.files(after)

    assert set(new) == set(old) - REMOVED | ADDED
    for path in set(old) - REMOVED - REPLACED - REWRITTEN:
        assert new[path].read(after) == old[path].read(before), path
    assert new["IMAGES/ASSISTED.IMG"].read(after) == bytes(RAMDISK_BYTES)
    assert new["IMAGES/NMSTATE.IMG"].read(after) == NMSTATE


def test_minimal_iso_is_pristine_and_has_a_ramdisk_area(derivation: Derivation) -> None:
    layout = read_layout(derivation.derive())
    base = derivation.base.coreos
    assert (layout.volume_id, layout.created, layout.customized) == (base.volume_id, base.created, None)
    assert layout.ignition.length == base.ignition.length
    assert layout.ramdisk
    assert layout.ramdisk.length == RAMDISK_BYTES
    assert layout.kernel_arguments
    assert base.kernel_arguments
    assert layout.kernel_arguments.default == MINIMAL_ARGUMENTS
    assert layout.kernel_arguments.size == base.kernel_arguments.size
    assert len(layout.kernel_arguments.areas) == len(base.kernel_arguments.areas)
    assert layout.files.rootfs is None


def test_each_boot_loader_loads_the_added_initrds(derivation: Derivation) -> None:
    image = derivation.derive()
    for path in REPLACED & set(mastered.files(image)) - {"COREOS/KARGS.JSO"}:
        config = mastered.files(image)[path].read(image).decode()
        assert re.search(
            r"/images/ignition.img[, ]/images/assisted_installer_custom.img[, ]/images/nmstate.img\b", config
        )


def test_minimal_iso_without_nmstatectl_does_not_name_it(derivation: Derivation) -> None:
    image = derivation.derive(nmstate=None)
    assert "IMAGES/NMSTATE.IMG" not in mastered.files(image)
    assert b"nmstate" not in image
    assert b"/images/assisted_installer_custom.img" in image


def test_added_files_have_rock_ridge_names(derivation: Derivation) -> None:
    derivation.derive()
    names = run_client("xorriso", "-indev", derivation.target, "-find", "/", "-type", "f").decode()
    for name in ("assisted_installer_custom.img", "nmstate.img", "ignition.img", "pxeboot/initrd.img"):
        assert f"'/images/{name}'" in names
    assert "'/coreos/igninfo.json'" in names


# How it boots.


def test_boot_records_are_those_of_the_base(derivation: Derivation, full: Path) -> None:
    derivation.derive()
    assert boot_records(derivation.target) == boot_records(full)


def test_x86_64_minimal_iso_has_hybrid_mbr_and_gpt(x86_64: Derivation) -> None:
    image = x86_64.derive()
    mastered.check_boot_info_table(image, "ISOLINUX/ISOLINUX.BIN")
    mastered.check_hybrid_mbr(image, "ISOLINUX/ISOLINUX.BIN", "IMAGES/EFIBOOT.IMG")
    mastered.check_gpt(image)
    mbr_code = 432
    assert image[:mbr_code] == os.pread(x86_64.base.file.descriptor, mbr_code, 0)


@pytest.mark.parametrize("name", NEWER)
def test_hybrid_image_stays_bootable_from_usb(
    name: str, tmp_path: Path, make: Callable[[Path], Derivation]
) -> None:
    (tmp_path / name).write_bytes(fixture(name))
    mastered.check_gpt(fixture(name))
    image = make(tmp_path / name).derive()
    mastered.check_hybrid_mbr(image, "ISOLINUX/ISOLINUX.BIN", "IMAGES/EFIBOOT.IMG")
    mastered.check_gpt(image)


@pytest.mark.parametrize("name", OLDER + NEWER)
def test_each_generation_of_base_gets_kargs_areas(
    name: str, tmp_path: Path, make: Callable[[Path], Derivation]
) -> None:
    (tmp_path / name).write_bytes(fixture(name))
    derivation = make(tmp_path / name)
    image = derivation.derive()
    layout = read_layout(image)
    kargs = layout.kernel_arguments
    assert kargs
    assert layout.kargs_json
    assert json.loads(layout.kargs_json.content)["default"] == kargs.default
    assert "coreos.liveiso" not in kargs.default
    assert len(kargs.areas) == 2
    assert layout.customized is None
    directories = run_client(
        "xorriso", "-indev", derivation.target, "-find", "/", "-type", "d", "-exec", "lsdl"
    )
    assert set(re.findall(r"^\S+", directories.decode(), re.MULTILINE)) == {"dr-xr-xr-x"}
    assert "COREOS/MINISO.DAT" not in mastered.files(image)
    assert image[32672:32680] == bytes(8)
    assert image[32744:32768] == bytes(24)


# What coreos-installer makes of it.


def test_coreos_installer_finds_the_areas(derivation: Derivation, tmp_path: Path) -> None:
    derivation.derive()
    config, customized = tmp_path / "config.ign", tmp_path / "customized.iso"
    config.write_text('{"ignition":{"version":"3.3.0"}}')

    assert coreos_installer("kargs", "show", derivation.target) == MINIMAL_ARGUMENTS
    assert coreos_installer("kargs", "show", "--default", derivation.target) == MINIMAL_ARGUMENTS
    coreos_installer("kargs", "modify", "-a", "a=b", "-o", customized, derivation.target)
    coreos_installer("ignition", "embed", "-i", config, customized)
    assert coreos_installer("kargs", "show", customized) == f"{MINIMAL_ARGUMENTS} a=b"
    assert coreos_installer("ignition", "show", customized) == config.read_text()
    coreos_installer("reset", customized)
    assert customized.read_bytes() == derivation.target.read_bytes()


def test_coreos_installer_reads_the_directories(derivation: Derivation) -> None:
    derivation.derive()
    shown = json.loads(run_client("coreos-installer", "dev", "show", "iso", derivation.target))
    assert "ASSISTED.IMG" in json.dumps(shown["records"])


# The same everywhere.


@pytest.fixture(params=[*FULL_ISOS, *OLDER])
def any_full(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A full ISO of any architecture or generation."""
    path, make_full = tmp_path / "base.iso", FULL_ISOS.get(request.param)
    if make_full:
        make_full(path)
    else:
        path.write_bytes(fixture(request.param))
    return path, request.param if make_full else "x86_64"


def test_derivation_is_reproducible(
    any_full: tuple[Path, str],
    tmp_path: Path,
    make: Callable[[Path, str], Derivation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, architecture = any_full
    first = make(path, architecture).derive()
    other = attrs.evolve(make(elsewhere(path), architecture), directory=tmp_path / "elsewhere" / "derivation")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.chdir(other.directory)
    mask = os.umask(0o077)
    try:
        assert other.derive() == first
    finally:
        os.umask(mask)


def test_iso_names_no_owner_and_no_version_of_xorriso(derivation: Derivation) -> None:
    image = derivation.derive()
    preparer = slice(16 * 2048 + 446, 16 * 2048 + 574)
    assert image[preparer].rstrip() == b"IMAGE-SERVICE"
    listing = run_client("xorriso", "-indev", derivation.target, "-find", "/", "-exec", "lsdl").decode()
    assert set(re.findall(r"^\S+ +\S+ +(\S+) +(\S+)", listing, re.MULTILINE)) == {("0", "0")}


def test_all_dates_are_those_of_the_base(derivation: Derivation) -> None:
    assert mastered.dates(derivation.derive()) == {f"{CREATED:%Y%m%d%H%M%S}".encode()}


@pytest.mark.parametrize("created", [None, datetime(1970, 1, 1, tzinfo=UTC)])
def test_base_without_a_date_gets_a_fixed_one(created: datetime | None, x86_64: Derivation) -> None:
    layout = attrs.evolve(x86_64.base.iso, created=created)
    undated = attrs.evolve(x86_64, base=attrs.evolve(x86_64.base, iso=layout))
    assert mastered.dates(undated.derive()) == {b"19800101000000"}


def test_order_of_added_files_does_not_depend_on_inodes(derivation: Derivation) -> None:
    """New files lie behind all others, in an order of ours; mtime and inode of a scratch file are chance."""
    new = mastered.files(derivation.derive())
    assert read_layout(derivation.target.read_bytes()).ramdisk
    configs = sorted(REPLACED & set(new) - {"COREOS/KARGS.JSO"}, key=lambda path: new[path].sector)
    expected = ["IMAGES/ASSISTED.IMG", "COREOS/KARGS.JSO", *configs, "IMAGES/NMSTATE.IMG"]
    last = sorted(new, key=lambda path: new[path].sector)[-len(expected) :]
    assert last == expected


def test_partition_guids_depend_on_the_base(x86_64: Derivation) -> None:
    first = x86_64.derive()
    other = attrs.evolve(x86_64, base=attrs.evolve(x86_64.base, sha256="12" * 32))
    guid = slice(512 + 56, 512 + 72)
    assert other.derive()[guid] == bytes([0x12]) * 16 != first[guid]


# What it costs, and what it leaves.


def test_disk_usage_is_that_of_the_minimal_iso(
    tmp_path: Path, make: Callable[[Path], Derivation], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_isos.x86_64(tmp_path / "large.iso", rootfs=os.urandom(80 * 2**20))
    derivation = make(tmp_path / "large.iso")
    xorriso = needs_client("xorriso")
    measure = f'"{xorriso}" "$@"; status=$?; du -sk {derivation.directory} >{tmp_path}/usage; exit $status'
    fake_xorriso(tmp_path, monkeypatch, measure)
    image = derivation.derive()
    peak_bytes = int((tmp_path / "usage").read_text().split()[0]) * 1024
    assert peak_bytes < len(image) + 4 * 2**20 < len(full_isos.ROOTFS) + 8 * 2**20
    assert derivation.left() == [derivation.target.name]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -9 $$", "xorriso exited with status -9: no message"),
        ("echo 'xorriso : FAILURE : the disk is full' >&2; exit 5", "status 5: the disk is full"),
    ],
)
def test_failure_leaves_no_files(
    script: str, reason: str, x86_64: Derivation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_xorriso(tmp_path, monkeypatch, f"{write_half(tmp_path)}; {script}")
    with pytest.raises(Unavailable, match=reason):
        x86_64.derive()
    assert (tmp_path / "half").exists()
    assert x86_64.left() == []


def test_interruption_kills_xorriso_and_leaves_no_files(
    x86_64: Derivation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "started")
    fake_xorriso(
        tmp_path, monkeypatch, f"{write_half(tmp_path)}; echo $$ >{tmp_path}/started; exec sleep 1000"
    )
    interruption, raised = Interruption(), []

    def run() -> None:
        try:
            x86_64.derive(interruption=interruption)
        except Interrupted as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    process = int((tmp_path / "started").read_text())
    interruption.interrupt()
    thread.join()
    assert raised
    assert not Path(f"/proc/{process}").exists()
    assert x86_64.left() == []


def test_missing_xorriso_is_reported(x86_64: Derivation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="xorriso is not installed; install the package xorriso"):
        x86_64.derive()
    assert x86_64.left() == []


# What is refused.


def test_s390x_is_refused(x86_64: Derivation) -> None:
    derivation = attrs.evolve(x86_64, base=attrs.evolve(x86_64.base, architecture="s390x"))
    with pytest.raises(BaseImageError, match="s390x boots with one initrd only"):
        derivation.derive()
    assert derivation.left() == []


def test_base_without_rootfs_is_refused(x86_64: Derivation) -> None:
    layout = x86_64.base.iso
    files = attrs.evolve(layout.files, rootfs=None)
    base = attrs.evolve(x86_64.base, iso=attrs.evolve(layout, files=files))
    derivation = attrs.evolve(x86_64, base=base)
    with pytest.raises(BaseImageError, match=r"there is no images/pxeboot/rootfs\.img"):
        derivation.derive()
    assert derivation.left() == []


def test_too_long_boot_configuration_is_refused(tmp_path: Path, make: Callable[[Path], Derivation]) -> None:
    files = live_files()
    files["isolinux/isolinux.cfg"] = files["isolinux/isolinux.cfg"].ljust(64 * 1024 + 1)
    master(tmp_path / "base.iso", files, VOLUME_ID)
    derivation = make(tmp_path / "base.iso")
    with pytest.raises(BaseImageError, match=r"isolinux/isolinux\.cfg has 65537 bytes, more than 65536"):
        derivation.derive()
    assert derivation.left() == []


@pytest.mark.parametrize("distance", [-1, 1000])
def test_area_outside_known_boot_configurations_is_refused(
    distance: int, tmp_path: Path, make: Callable[[Path], Derivation]
) -> None:
    """As an old header may name one; where a file list does, the list names the boot configuration too."""
    full_isos.x86_64(tmp_path / "base.iso")
    derivation = make(tmp_path / "base.iso")
    grub = mastered.files((tmp_path / "base.iso").read_bytes())["EFI/REDHAT/GRUB.CFG"]
    kargs = derivation.base.coreos.kernel_arguments
    assert kargs
    areas = (attrs.evolve(kargs.areas[0], offset=grub.sector * 2048 + distance), kargs.areas[1])
    layout = attrs.evolve(derivation.base.coreos, kernel_arguments=attrs.evolve(kargs, areas=areas))
    with pytest.raises(BaseImageError, match=r"contain only 1 of the 2 kernel argument areas"):
        attrs.evolve(derivation, base=attrs.evolve(derivation.base, iso=layout)).derive()


def test_boot_configurations_are_found_by_kargs_json(
    tmp_path: Path, make: Callable[[Path], Derivation]
) -> None:
    files = {name.replace("redhat", "scos"): content for name, content in live_files().items()}
    files["coreos/kargs.json"] = files["coreos/kargs.json"].replace(b"redhat", b"scos")
    files["EFI/redhat/grub.cfg"] = b"configfile /EFI/scos/grub.cfg\n"  # boots nothing itself
    master(tmp_path / "base.iso", files, VOLUME_ID)
    image = make(tmp_path / "base.iso").derive()
    found = mastered.files(image)
    assert found["EFI/REDHAT/GRUB.CFG"].read(image) == files["EFI/redhat/grub.cfg"]
    assert b" /images/nmstate.img\n" in found["EFI/SCOS/GRUB.CFG"].read(image)


def test_different_rock_ridge_name_is_refused(tmp_path: Path, make: Callable[[Path], Derivation]) -> None:
    """Or the image would have two boot configurations, of which only one is right."""
    files = live_files()
    files["coreos/kargs.json"] = files["coreos/kargs.json"].replace(b"isolinux.cfg", b"ISOLINUX.CFG")
    files["isolinux/ISOLINUX.cfg"] = files.pop("isolinux/isolinux.cfg")
    master(tmp_path / "base.iso", files, VOLUME_ID)
    with pytest.raises(Unavailable, match=r"isolinux\.cfg"):
        make(tmp_path / "base.iso").derive()


def elsewhere(path: Path) -> Path:
    """A copy of a base image, beside an unrelated archive."""
    copy = path.parent / "elsewhere" / "copy.iso"
    archive = copy.parent / "derivation" / "nmstate.img"
    archive.parent.mkdir(parents=True)
    archive.touch(mode=0o600)
    if os.geteuid() == 0:
        os.chown(archive, 12345, 12345)
    shutil.copyfile(path, copy)
    os.utime(copy, (0, 0))
    return copy


def write_half(directory: Path) -> str:
    """Shell commands that write something where xorriso is to write, and make a note of it."""
    target = '"${argument#stdio:}"'
    write = f"echo half >{target}; cp {target} {directory}/half"
    return f"for argument; do case $before in -outdev) {write};; esac; before=$argument; done"


def boot_records(path: Path) -> list[str]:
    """Return xorriso's report of El Torito and partition tables, without addresses, sizes and GUIDs."""
    options = ("-report_el_torito", "plain", "-report_system_area", "plain")
    lines = run_client("xorriso", "-indev", path, *options).decode().splitlines()
    varying = re.compile(r"GUID|ISO image size|lba range|start and size|gap filler|Gap|APM partition type")
    kept = [line for line in lines if not varying.search(line)]
    boot_images = re.compile(r"(El Torito boot img :.*) [0-9]+$")
    partitions = re.compile(r"(MBR partition +: +[0-9]+ +\S+ +\S+) +[0-9]+ +[0-9]+$")
    return [partitions.sub(r"\1", boot_images.sub(r"\1", line)) for line in kept]


def coreos_installer(*arguments: str | Path) -> str:
    """What it writes about an ISO."""
    return run_client("coreos-installer", "iso", *arguments).decode().removesuffix("\n")

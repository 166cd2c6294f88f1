"""ISOs of each family, made by the recipes of their builders: recognized, edited, and read by xorriso."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import ConfigInvalid, Unprocessable
from image_service.core.families.live.editing import INITRD_PATH, MAX_LIST_BYTES, edit_medium
from image_service.core.families.live.families import FAMILIES, detect_family, get_family
from image_service.core.families.live.family import MediumEdit
from image_service.core.families.live.medium import LiveMedium
from image_service.core.families.live.suse import AGAMA
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.formats.initrd import read_members
from image_service.core.images.config_medium import MEDIA
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.efi_programs import build_efi_program
from tests.core.formats.iso_edit.isos import base_of, extract

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.slow

CONFIG = b"what: the family reads\n"
GRUB = b"set timeout=-1\nmenuentry x {\n  linux /vmlinuz quiet --- splash\n  initrd /initrd.gz\n}\n"
ISOLINUX = b"default x\nprompt 0\nlabel x\n  kernel /vmlinuz\n  append initrd=/initrd.gz quiet --- splash\n"
BOOT = {"boot/grub/grub.cfg": GRUB, "isolinux/isolinux.cfg": ISOLINUX, "vmlinuz": b"k", "initrd.gz": b"i"}


@attrs.frozen
class Case:
    """A family.

    Args:
        files: of its ISO, beside `BOOT`.
        placed: files of the edited ISO.
        arguments: of its kernel, of those before ``---``.
        initrd: the file of the additional initrd that has the config.
    """

    name: str
    files: Mapping[str, bytes]
    placed: Mapping[str, bytes] = attrs.field(factory=dict)
    arguments: str = "quiet"
    initrd: str = ""
    label: str = "LABEL"


CASES = [
    Case(
        "debian-installer",
        {
            ".disk/info": b'Debian GNU/Linux 12.5.0 "Bookworm" - Official amd64 NETINST',
            "install.amd/vmlinuz": b"",
        },
        arguments="quiet auto=true priority=critical",
        initrd="preseed.cfg",
    ),
    Case(
        "debian-live",
        {"live/filesystem.squashfs": b"hsqs", ".disk/info": b"Debian GNU/Linux live"},
        {"nocloud/user-data": CONFIG, "nocloud/meta-data": b"instance-id: image-service\n"},
        "quiet 'ds=nocloud;s=/run/live/medium/nocloud/'",
    ),
    Case(
        "ubuntu",
        {"casper/vmlinuz": b"", ".disk/info": b"Ubuntu-Server 24.04 LTS"},
        {"autoinstall.yaml": CONFIG},
        "quiet autoinstall",
    ),
    Case(
        "anaconda",
        {".treeinfo": b"[general]", "images/install.img": b"x"},
        {"ks.cfg": CONFIG},
        "quiet inst.ks=hd:LABEL=Fedora-S-dvd-x86_64-40:/ks.cfg",
        label="Fedora-S-dvd-x86_64-40",
    ),
    Case(
        "agama",
        {"LiveOS/squashfs.img": b"hsqs", "boot/x86_64/loader/linux": b"k"},
        {"agama.jsonnet": CONFIG},
        "quiet inst.auto=file:///run/initramfs/live/agama.jsonnet",
        label="Install-SLES-16.0-x86_64",
    ),
    Case("suse", {"media.1/media": b"SUSE"}, {"autoinst.xml": CONFIG}),
    Case(
        "proxmox",
        {".pve-cd-id.txt": b"1"},
        {"auto-installer-mode.toml": b'mode = "iso"\n', "answer.toml": CONFIG},
    ),
    Case("alpine", {".alpine-release": b"3.20"}, {"localhost.apkovl.tar.gz": CONFIG}),
    Case("kairos", {"rootfs.squashfs": b"hsqs"}, {"config.yaml": CONFIG}, label="COS_LIVE"),
    Case("talos", {"boot/vmlinuz": b"", "boot/initramfs.xz": b""}, arguments="quiet talos.config=metal-iso"),
    Case(
        "flatcar",
        {"flatcar/vmlinuz-a": b"k"},
        arguments="quiet flatcar.first_boot=1",
        initrd="usr/share/oem/config.ign",
    ),
]
REFUSING = {
    "harvester": ({"harvester-release.yaml": b""}, "config_url"),
    "combustion": ({"config.isoclient": b'IMAGE="MicroOS.raw"'}, "second CD"),
    "nixos": ({"nix-store.squashfs": b""}, "append arguments"),
    "generic": ({"readme": b""}, "give files"),
}


def _names(case: Case) -> str:
    return case.name


@cache
def _make(label: str, files: tuple[tuple[str, bytes], ...], *options: str) -> bytes:
    with TemporaryDirectory() as name:
        for path, content in files:
            file = Path(name, "tree", path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        out = Path(name, "out.iso")
        command = [needs_client("xorriso"), "-as", "mkisofs", "-quiet", "-r", "-J", "-V", label, *options]
        subprocess.run([*command, "-o", str(out), f"{name}/tree"], check=True, capture_output=True)
        return out.read_bytes()


def make(label: str, files: Mapping[str, bytes], *options: str) -> bytes:
    return _make(label, tuple(files.items()), *options)


@pytest.mark.parametrize("case", CASES, ids=_names)
def test_config_is_where_its_family_reads_it(case: Case, tmp_path: Path) -> None:
    data = make(case.label, {**BOOT, **case.files})
    medium = LiveMedium(base_of(data))
    family = detect_family(medium)
    assert family.name == case.name
    edited = edit_medium(medium, family.place(medium, CONFIG)).apply(medium.base)
    files = extract(edited.read_at(0, edited.size), tmp_path)
    expected = {**BOOT, **case.files, **case.placed}
    named = [f" /{INITRD_PATH}", f",/{INITRD_PATH}"] if case.initrd else ["", ""]
    unquoted = case.arguments.replace("'", "")
    if files["boot/grub/grub.cfg"] != GRUB:
        assert f"  linux /vmlinuz {case.arguments} --- splash\n".encode() in files["boot/grub/grub.cfg"]
        assert f"  initrd /initrd.gz{named[0]}\n".encode() in files["boot/grub/grub.cfg"]
        assert (
            f"initrd=/initrd.gz{named[1]} {unquoted} --- splash\n".encode() in files["isolinux/isolinux.cfg"]
        )
    else:
        assert case.arguments == "quiet"
    if case.initrd:
        assert read_members(files.pop(INITRD_PATH))[case.initrd].data == CONFIG
    for path in ("boot/grub/grub.cfg", "isolinux/isolinux.cfg"):
        files.pop(path)
        expected.pop(path)
    assert files == expected


def test_every_family_has_a_case() -> None:
    own = {"coreos-generic", "esxi", "unified-kernel"}
    assert {family.name for family in FAMILIES} == {case.name for case in CASES} | REFUSING.keys() | own


@pytest.mark.parametrize("name", REFUSING)
def test_config_without_a_place_is_refused_with_what_works_instead(name: str) -> None:
    files, instead = REFUSING[name]
    medium = LiveMedium(base_of(make("LABEL", {**BOOT, **files})))
    family = detect_family(medium)
    assert family.name == name
    with pytest.raises(Unprocessable, match=instead):
        family.place(medium, CONFIG)
    plan = edit_medium(medium, MediumEdit(boot=BootEdit(append=("console=ttyS0",))))
    assert len(plan.places) == 2


@pytest.mark.parametrize("system", ["LiveOS/squashfs.img", "LiveOS/rootfs.img"])
def test_coreos_without_an_embed_area_gets_its_config_in_an_initrd(system: str, tmp_path: Path) -> None:
    linux = b"menuentry x {\n  linux /images/pxeboot/vmlinuz coreos.liveiso=any ignition.platform.id=metal\n"
    grub = linux + b"  initrd /images/pxeboot/initrd.img\n}\n"
    boot = {"images/pxeboot/vmlinuz": b"k", "images/pxeboot/initrd.img": b"i", system: b"file system"}
    medium = LiveMedium(base_of(make("MY-COREOS", {**boot, "boot/grub2/grub.cfg": grub})))
    family = detect_family(medium)
    assert (family.name, family.config) == ("coreos-generic", "Ignition config")
    edited = edit_medium(medium, family.place(medium, CONFIG)).apply(medium.base)
    files = extract(edited.read_at(0, edited.size), tmp_path)
    assert read_members(files[INITRD_PATH])["config.ign"].data == CONFIG
    initrds = f"  initrd /images/pxeboot/initrd.img /{INITRD_PATH}\n".encode()
    assert files["boot/grub2/grub.cfg"] == linux + initrds + b"}\n"
    other = make("MY-COREOS", {**boot, "boot/grub2/grub.cfg": grub.replace(b"ignition.platform", b"x")})
    assert detect_family(LiveMedium(base_of(other))).name == "generic"


def test_kickstart_of_esxi_is_named_in_both_configurations(tmp_path: Path) -> None:
    boot = b"bootstate=0\nkernel=/b.b00\nkernelopt=runweasel\nmodules=/jumpstrt.gz --- /useropts.gz\n"
    files = {"BOOT.CFG": boot, "EFI/BOOT/BOOT.CFG": boot}
    medium = LiveMedium(base_of(make("ESXI-8", files)))
    family = detect_family(medium)
    assert family.name == "esxi"
    edited = edit_medium(medium, family.place(medium, CONFIG)).apply(medium.base)
    read = extract(edited.read_at(0, edited.size), tmp_path)
    for path in files:
        assert b"kernelopt=runweasel ks=cdrom:/KS.CFG\n" in read[path]
    assert read["KS.CFG"] == CONFIG


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (b'{"product": {"id": "SLES"}}', "agama.json"),
        (b"{ product: { id: 'SLES' } }", "agama.jsonnet"),
        (b"#!/bin/sh\nagama install\n", "agama.sh"),
        (b"<?xml version='1.0'?>\n<profile/>", "autoinst.xml"),
    ],
)
def test_profile_of_agama_is_named_by_its_language(config: bytes, name: str) -> None:
    family = get_family("agama")
    medium = LiveMedium(base_of(make("AGAMA", BOOT)))
    family.check(config)
    edit = family.place(medium, config)
    assert (edit.files, edit.boot.append) == (
        {name: config},
        (f"inst.auto=file:///run/initramfs/live/{name}",),
    )


@pytest.mark.parametrize(
    ("config", "path"), [(b"{}", "autoinst.json"), (b"{a: 1}", "autoinst.jsonnet"), (b"<p/>", "autoinst.xml")]
)
def test_agama_finds_its_profile_on_a_second_medium_by_its_suffix(config: bytes, path: str) -> None:
    medium = AGAMA.medium
    assert medium is not None
    label, find_path = medium
    assert callable(find_path)
    assert MEDIA[label].complete({find_path(config): config}) == {path: config}
    with pytest.raises(Unprocessable, match="for no script"):
        find_path(b"#!/bin/sh")


@pytest.mark.parametrize(
    ("name", "config"), [("agama", b"reboot"), ("agama", b"<a>"), ("combustion", b"a: b")]
)
def test_profile_that_suse_does_not_read_is_refused(name: str, config: bytes) -> None:
    with pytest.raises(ConfigInvalid):
        get_family(name).check(config)


def make_esp(files: Mapping[str, bytes], directory: Path) -> Path:
    image = directory / "esp"
    image.write_bytes(bytes(8 << 20))
    run_client("mkfs.vfat", image)
    for path, content in files.items():
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            subprocess.run(
                [needs_client("mmd"), "-D", "s", "-i", image, "::" + "/".join(parts[:depth])],
                check=False,
                capture_output=True,
            )
        source = directory / "source"
        source.write_bytes(content)
        run_client("mcopy", "-o", "-i", image, source, f"::{path}")
    return image


ESP_OPTIONS = ("-partition_offset", "16", "-append_partition", "2", "0xef")


def test_credential_is_beside_the_unified_kernel(tmp_path: Path) -> None:
    esp = make_esp({"EFI/Linux/os.efi": b"MZ signed"}, tmp_path)
    data = make("PARTICLE", {"readme": b""}, *ESP_OPTIONS, str(esp))
    medium = LiveMedium(base_of(data))
    family = detect_family(medium)
    assert family.name == "unified-kernel"
    edited = edit_medium(medium, family.place(medium, CONFIG)).apply(medium.base)
    assert edited.size == len(data), "the FAT keeps its size, and nothing else changes"
    fat = LiveMedium(base_of(edited.read_at(0, edited.size))).efi_images[0].fat
    assert fat.read("loader/credentials/image-service.cred") == CONFIG
    assert fat.read("EFI/Linux/os.efi") == b"MZ signed"
    for edit in (MediumEdit(boot=BootEdit(append=("quiet",))), MediumEdit(initrd={"a": b""})):
        with pytest.raises(
            Unprocessable, match=r"unified kernel are in it \(EFI/Linux/os\.efi\).* signed addon"
        ):
            edit_medium(LiveMedium(base_of(data)), edit)


@pytest.mark.parametrize("files", [{}, {"boot/vmlinuz": b"", "boot/initramfs.xz": b""}])
def test_talos_with_a_unified_kernel_needs_its_argument_in_it(
    files: Mapping[str, bytes], tmp_path: Path
) -> None:
    """Also where GRUB, which takes arguments, starts the same system for BIOS."""
    esp = make_esp({"EFI/Linux/Talos-v1.12.0.efi": b"MZ signed"}, tmp_path)
    medium = LiveMedium(base_of(make("ISOIMAGE", {"readme": b"", **BOOT, **files}, *ESP_OPTIONS, str(esp))))
    family = detect_family(medium)
    assert (family.name, family.medium) == ("talos", ("metal-iso", "config.yaml"))
    with pytest.raises(Unprocessable, match=r"made with this argument, and give config\.iso"):
        family.place(medium, CONFIG)
    with pytest.raises(Unprocessable, match=r"unified kernel are in it \(EFI/Linux/Talos-v1\.12\.0\.efi\)"):
        edit_medium(medium, MediumEdit(boot=BootEdit(append=("quiet",))))


def test_addon_is_beside_the_unified_kernel(tmp_path: Path) -> None:
    addon = build_efi_program(signature=b"signed")
    esp = make_esp({"EFI/Linux/os.efi": b"MZ signed"}, tmp_path)
    medium = LiveMedium(base_of(make("PARTICLE", {"readme": b""}, *ESP_OPTIONS, str(esp))))
    family = get_family("unified-kernel")
    family.check(addon)
    edited = edit_medium(medium, family.place(medium, addon)).apply(medium.base)
    fat = LiveMedium(base_of(edited.read_at(0, edited.size))).efi_images[0].fat
    assert fat.read("loader/addons/image-service.addon.efi") == addon
    with pytest.raises(ConfigInvalid, match="the addon is not a program for UEFI"):
        family.check(b"MZ" + bytes(100))


def test_disk_that_bios_emulates_is_named() -> None:
    files = {"floppy.img": bytes(1440 * 1024), "readme": b""}
    medium = LiveMedium(base_of(make("DOS", files, "-b", "floppy.img", "-c", "boot.cat")))
    with pytest.raises(
        Unprocessable, match=r"boots from an image of a disk .*El Torito emulation.*edit that"
    ):
        edit_medium(medium, MediumEdit(boot=BootEdit(append=("quiet",))))
    assert edit_medium(medium, MediumEdit(files={"new": b"1"})).places


def test_iso_without_a_loader_says_which_are_known() -> None:
    medium = LiveMedium(base_of(make("LABEL", {"readme": b""})))
    with pytest.raises(Unprocessable, match=r"no boot configuration .* GRUB, SYSLINUX, systemd-boot or ESXi"):
        edit_medium(medium, MediumEdit(boot=BootEdit(append=("quiet",))))
    with pytest.raises(Unprocessable, match="has no FAT file system that UEFI boots from"):
        edit_medium(medium, MediumEdit(efi_files={"loader/addons/a.efi": b""}))


@pytest.mark.parametrize(
    "files",
    [
        {"boot/grub/grub.cfg.sig": b"signature"},
        {"boot/grub/grub.cfg": b"set check_signatures=enforce\n" + GRUB},
        {
            "boot/grub/grub.cfg": b"source /boot/grub/x.cfg\n",
            "boot/grub/x.cfg": GRUB,
            "boot/grub/x.cfg.sig": b"s",
        },
    ],
)
def test_grub_that_checks_signatures_is_named(files: Mapping[str, bytes]) -> None:
    medium = LiveMedium(base_of(make("LABEL", {**BOOT, **files})))
    with pytest.raises(
        Unprocessable, match=r"GRUB checks the signature of boot/grub/.*\.cfg.* put files alone"
    ):
        edit_medium(medium, MediumEdit(boot=BootEdit(append=("quiet",))))
    assert edit_medium(medium, MediumEdit(files={"answer.toml": CONFIG})).places


def test_entries_in_an_appended_partition_are_edited_and_move_with_it(tmp_path: Path) -> None:
    entry = b"title x\nlinux /vmlinuz\ninitrd /initrd\noptions quiet\n"
    esp = make_esp({"loader/entries/x.conf": entry, "vmlinuz": b"k", "initrd": b"i"}, tmp_path)
    data = make("SDBOOT", {"readme": b""}, *ESP_OPTIONS, str(esp))
    medium = LiveMedium(base_of(data))
    edit = MediumEdit({"new": b"1"}, {"etc/config": CONFIG}, boot=BootEdit(append=("console=ttyS0",)))
    edited = edit_medium(medium, edit).apply(medium.base)
    content = edited.read_at(0, edited.size)
    (image,) = LiveMedium(base_of(content)).efi_images
    assert image.offset > len(data)
    text = image.fat.read("loader/entries/x.conf")
    assert text is not None
    assert b"options quiet console=ttyS0\n" in text
    assert f"initrd /{INITRD_PATH}\n".encode() in text
    initrd = image.fat.read(INITRD_PATH)
    assert initrd is not None
    assert read_members(initrd)["etc/config"].data == CONFIG
    assert extract(content, tmp_path)["new"] == b"1"


@pytest.mark.parametrize("others", [0, 15_000])
def test_lists_of_checksums_stay_true(tmp_path: Path, others: int) -> None:
    files = {**BOOT, "casper/vmlinuz": b"k", ".disk/info": b"Ubuntu", "pool/empty": b""}
    lines = [f"{hashlib.md5(content).hexdigest()}  ./{path}" for path, content in files.items()]  # noqa: S324 - its format
    lines += [f"{hashlib.md5(b'').hexdigest()}  .{'/.' * 20}/pool/empty"] * others  # noqa: S324 - same
    files["md5sum.txt"] = "\n".join([*lines, ""]).encode()
    medium = LiveMedium(base_of(make("Ubuntu", files)))
    edited = edit_medium(medium, get_family("ubuntu").place(medium, CONFIG)).apply(medium.base)
    extract(edited.read_at(0, edited.size), tmp_path)
    done = subprocess.run(
        ["md5sum", "--check", "--quiet", "md5sum.txt"],
        cwd=tmp_path / "files",
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout
    listed = (tmp_path / "files" / "md5sum.txt").read_text()
    assert "autoinstall.yaml" in listed


def test_list_of_checksums_that_is_too_long_is_refused() -> None:
    files = {**BOOT, "casper/vmlinuz": b"k", ".disk/info": b"Ubuntu", "md5sum.txt": bytes(MAX_LIST_BYTES + 1)}
    medium = LiveMedium(base_of(make("Ubuntu", files)))
    with pytest.raises(Unprocessable, match=r"md5sum\.txt has 8388609 bytes, more than 8388608"):
        edit_medium(medium, get_family("ubuntu").place(medium, CONFIG))


@pytest.mark.parametrize(
    ("edit", "has_checksum", "is_checked"),
    [
        (MediumEdit(files={"new": b"1"}), True, False),
        (MediumEdit(boot=BootEdit(append=("quiet",))), False, False),
        (MediumEdit(files={"new": b"1"}), False, True),
        (MediumEdit(), True, True),
    ],
)
def test_checksum_of_the_medium_is_not_compared_after_an_edit(
    edit: MediumEdit, *, has_checksum: bool, is_checked: bool
) -> None:
    """implantisomd5 writes it into the primary descriptor."""
    grub = GRUB.replace(b"quiet", b"rd.live.check rd.live.check=0 quiet")
    data = bytearray(make("ANY", {**BOOT, "boot/grub/grub.cfg": grub}))
    if has_checksum:
        data[16 * 2048 + 883 : 16 * 2048 + 895] = b"ISO MD5SUM ="
    medium = LiveMedium(base_of(bytes(data)))
    edited = edit_medium(medium, edit).apply(medium.base)
    menu = LiveMedium(edited).text("boot/grub/grub.cfg").split()
    assert ("rd.live.check" in menu, "rd.live.check=0" in menu) == (is_checked, True)


def test_family_that_does_not_exist_is_named() -> None:
    with pytest.raises(Unprocessable, match="there is no family 'windows'; there are coreos, ubuntu"):
        get_family("windows")


@pytest.mark.parametrize("is_file", [True, False])
def test_fat_without_room_is_named(*, is_file: bool, tmp_path: Path) -> None:
    esp = make_esp({"EFI/Linux/os.efi": b"MZ signed"}, tmp_path)
    if is_file:
        files = {"boot/grub/efi.img": esp.read_bytes()}
        data = make("LABEL", files, "-e", "boot/grub/efi.img", "-no-emul-boot")
    else:
        data = make("LABEL", {"readme": b""}, *ESP_OPTIONS, str(esp))
    medium = LiveMedium(base_of(data))
    name = "boot/GRUB/EFI.IMG" if is_file else "the EFI system partition"
    offset = medium.efi_images[0].offset
    with pytest.raises(
        Unprocessable, match=f"^{name} at offset {offset} of the ISO: .* has no room: [0-9]+ clu"
    ):
        edit_medium(medium, MediumEdit(efi_files={"large": bytes(9 << 20)}))

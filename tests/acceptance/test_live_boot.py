"""Guests boot edited ISOs of other families than CoreOS from the service, and show what they got."""

from __future__ import annotations

import base64
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.guest import firmware, medium, read_console, run_machine
from tests.acceptance.live_media import (
    ARGUMENTS,
    SEEN_FILE,
    TALOS_LABEL,
    boot_live,
    make_addon,
    make_debian_installer_iso,
    make_rescue_iso,
    make_systemd_boot_iso,
    make_talos_iso,
    make_unified_kernel_iso,
)
from tests.acceptance.secure_boot import make_signing_key
from tests.acceptance.service import INFRA_ENVS, os_image, run_service
from tests.core.formats.iso_edit.isos import edit
from tests.core.formats.iso_edit.omissions import (
    grow_no_partition,
    leave_trees_of_partitions,
    move_no_partition,
)
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.secure_boot import SigningKey

pytestmark = [pytest.mark.acceptance, pytest.mark.boot, pytest.mark.timeout(1000)]

VERSION = "live"
APPENDED = ["edited.by=image-service", "edited.twice=yes"]
TALOS_CONFIG = "version: v1alpha1"
CONFIG = "#!/config of the test, ünïcode"
NEW_FILE = "nocloud/user-data"
PRESEEDED = "the installer has read its preseed file"
PRESEED = f"""\
d-i debian-installer/locale string de_DE.UTF-8
d-i preseed/early_command string {{ echo "{PRESEEDED}: $(debconf-get debian-installer/locale)"; \
cat /proc/cmdline; dmesg | grep secureboot:; }} > /dev/ttyS0; sleep 1; poweroff -f
"""


@contextmanager
def served(
    iso: Path,
    directory: Path,
    family: str,
    config: str | Mapping[str, str],
    arguments: list[str],
    **environment: str,
) -> Iterator[str]:
    """Serve an ISO with a config; yield the URL of the edited one.

    Args:
        family: of the ISO; empty: the one that the service recognizes.
        config: text, or an archive or program in base64.
        environment: of the service.
    """
    entry = os_image(iso, VERSION) | ({"family": family} if family else {})
    with run_service(directory, [entry], environment=environment) as service:
        operations = [{"operation": "append", "value": argument} for argument in arguments]
        fields = {"name": VERSION, "openshift_version": VERSION, "kernel_arguments": operations}
        answer = service.ask_api(INFRA_ENVS, {**fields, "family_config": config})
        assert answer.status == 201, answer
        path = f"/byid/{answer.json()['id']}/{VERSION}/x86_64/full.iso"
        image = service.get_image(path, method="HEAD")
        assert image.status == 200, service.get_image(path)
        yield service.url + path


@pytest.mark.parametrize(
    ("firmware_name", "medium_name"),
    [soaked("bios", "cd"), soaked("bios", "usb"), soaked("uefi", "cd"), ("uefi", "usb")],
)
def test_grub_passes_arguments_on_and_the_guest_finds_the_file(
    firmware_name: str, medium_name: str, tmp_path: Path
) -> None:
    iso = tmp_path / "rescue.iso"
    make_rescue_iso(iso)
    options = firmware(firmware_name, tmp_path)
    with served(iso, tmp_path, "debian-live", CONFIG, APPENDED) as url:
        shown = boot_live([*options, *medium(medium_name, url)], url)
    source = "ds=nocloud;s=/run/live/medium/nocloud/"
    assert shown["arguments"].endswith(" ".join([ARGUMENTS, source, *APPENDED]))
    assert shown["vda nocloud/user-data"] == CONFIG


@pytest.mark.soak
@pytest.mark.parametrize(
    ("firmware_name", "medium_name"),
    [("bios", "cd"), soaked("bios", "usb"), soaked("uefi", "cd"), soaked("uefi", "usb")],
)
def test_iso_of_no_family_boots_with_files_arguments_and_initrd_of_the_command_line(
    firmware_name: str, medium_name: str, tmp_path: Path
) -> None:
    iso, edited, file = tmp_path / "rescue.iso", tmp_path / "edited.iso", tmp_path / "file"
    make_rescue_iso(iso)
    file.write_text(CONFIG)
    put = [f"--put={SEEN_FILE}={file}", f"--initrd-put={SEEN_FILE}={file}"]
    arguments = [f"--karg-append={argument}" for argument in APPENDED]
    cli = (sys.executable, "-m", "image_service.cli", "customize")
    run_client(*cli, iso, *put, *arguments, "-o", edited)
    options = [*firmware(firmware_name, tmp_path), *medium(medium_name, str(edited))]
    shown = boot_live(options, str(edited))
    assert shown["arguments"].endswith(" ".join([ARGUMENTS, *APPENDED]))
    assert (shown[f"initrd {SEEN_FILE}"], shown[f"vda {SEEN_FILE}"]) == (CONFIG, CONFIG)


@pytest.mark.parametrize(
    ("table", "medium_name"), [soaked("gpt", "cd"), soaked("gpt", "usb"), ("mbr", "cd"), soaked("mbr", "usb")]
)
def test_uefi_boots_from_a_partition_that_the_config_has_moved(
    table: str, medium_name: str, tmp_path: Path
) -> None:
    """The ISO and its partition have the file, which is where the EFI system partition was."""
    iso = tmp_path / "systemd.iso"
    make_systemd_boot_iso(iso, is_gpt=table == "gpt")
    options = firmware("uefi", tmp_path)
    with served(iso, tmp_path, "kairos", CONFIG, APPENDED) as url:
        shown = boot_live([*options, *medium(medium_name, url)], url)
    assert shown["arguments"].endswith(" ".join([ARGUMENTS, *APPENDED]))
    assert (shown["vda config.yaml"], shown["vda1 config.yaml"]) == (CONFIG, CONFIG)


@pytest.mark.parametrize("medium_name", [soaked("cd"), soaked("usb")])
def test_systemd_boot_loads_one_more_initrd_from_its_partition(medium_name: str, tmp_path: Path) -> None:
    iso = tmp_path / "systemd.iso"
    make_systemd_boot_iso(iso, is_gpt=True)
    options = firmware("uefi", tmp_path)
    with served(iso, tmp_path, "debian-installer", CONFIG, APPENDED) as url:
        shown = boot_live([*options, *medium(medium_name, url)], url)
    assert shown["arguments"].endswith(" ".join(["auto=true priority=critical", *APPENDED]))
    assert shown["initrd preseed.cfg"] == CONFIG


@pytest.mark.parametrize("medium_name", ["cd", soaked("usb")])
def test_unified_kernel_gets_a_credential(medium_name: str, tmp_path: Path) -> None:
    iso = tmp_path / "unified.iso"
    make_unified_kernel_iso(iso)
    options = firmware("uefi", tmp_path)
    with served(iso, tmp_path, "", CONFIG, []) as url:
        shown = boot_live([*options, *medium(medium_name, url)], url)
    assert shown["arguments"] == ARGUMENTS
    assert shown["credential image-service.cred"] == CONFIG


@pytest.mark.soak
@pytest.mark.parametrize("medium_name", ["cd", "usb"])
def test_signed_kernel_gets_the_arguments_of_a_signed_addon(medium_name: str, tmp_path: Path) -> None:
    key = make_signing_key(tmp_path)
    addon = key.sign(make_addon(" ".join(APPENDED)))
    shown = boot_signed_kernel(key, medium_name, {"base64": base64.b64encode(addon).decode()}, tmp_path)
    assert shown["arguments"].split() == [*ARGUMENTS.split(), *APPENDED]


@pytest.mark.soak
def test_signed_kernel_refuses_an_addon_of_another_key(tmp_path: Path) -> None:
    key, other = make_signing_key(tmp_path), make_signing_key(tmp_path, "other")
    addon = other.sign(make_addon(" ".join(APPENDED)))
    shown = boot_signed_kernel(key, "cd", {"base64": base64.b64encode(addon).decode()}, tmp_path)
    assert shown["arguments"].split() == ARGUMENTS.split()


@pytest.mark.soak
@pytest.mark.parametrize("medium_name", ["cd", "usb"])
def test_signed_kernel_gets_a_credential(medium_name: str, tmp_path: Path) -> None:
    shown = boot_signed_kernel(make_signing_key(tmp_path), medium_name, CONFIG, tmp_path)
    assert shown["credential image-service.cred"] == CONFIG


def boot_signed_kernel(
    key: SigningKey, medium_name: str, config: str | Mapping[str, str], directory: Path
) -> Mapping[str, str]:
    """Return what a guest shows whose firmware starts only what the key has signed."""
    iso = directory / "unified.iso"
    make_unified_kernel_iso(iso, key.sign)
    options = firmware("secure boot", directory, key.enroll(directory))
    with served(iso, directory, "", config, []) as url:
        shown = boot_live([*options, *medium(medium_name, url)], url)
    assert shown["secure boot"] == "1"
    return shown


@pytest.mark.soak
@pytest.mark.parametrize(
    ("firmware_name", "medium_name"), [("bios", "cd"), ("bios", "usb"), ("uefi", "cd"), ("uefi", "usb")]
)
def test_talos_is_told_to_look_for_the_second_medium(
    firmware_name: str, medium_name: str, tmp_path: Path
) -> None:
    iso = tmp_path / "talos.iso"
    make_talos_iso(iso)
    options = firmware(firmware_name, tmp_path)
    with served(iso, tmp_path, "", TALOS_CONFIG, APPENDED) as url:
        second = url.replace("full.iso", "config.iso")
        shown = boot_live([*options, *medium(medium_name, url)], url, second)
    assert shown["arguments"].endswith(" ".join([ARGUMENTS, f"talos.config={TALOS_LABEL}", *APPENDED]))
    assert shown[f"{TALOS_LABEL} config.yaml"] == TALOS_CONFIG


@pytest.mark.parametrize(
    ("firmware_name", "medium_name"),
    [
        soaked("bios", "cd"),
        soaked("bios", "usb"),
        soaked("uefi", "cd"),
        soaked("uefi", "usb"),
        ("secure boot", "cd"),
        soaked("secure boot", "usb"),
    ],
)
def test_debians_installer_reads_its_preseed_file_and_asks_nothing(
    firmware_name: str, medium_name: str, tmp_path: Path
) -> None:
    iso = tmp_path / "installer.iso"
    make_debian_installer_iso(iso)
    options = firmware(firmware_name, tmp_path)
    with served(iso, tmp_path, "", PRESEED, [*ARGUMENTS.split(), *APPENDED]) as url:
        options = [*options, *medium(medium_name, url), "-m", "1024"]
        console = run_machine(*options, timeout_seconds=900).decode(errors="replace")
    assert f"{PRESEEDED}: de_DE.UTF-8\n" in console
    assert " ".join(["auto=true priority=critical", ARGUMENTS, *APPENDED, "---"]) in console
    assert ("secureboot: Secure boot enabled" in console) == (firmware_name == "secure boot")


@pytest.mark.soak
@pytest.mark.parametrize("leave_out", [leave_trees_of_partitions, grow_no_partition])
def test_partition_lacks_the_new_file_without(
    leave_out: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    edited = edit_systemd_boot_iso(tmp_path)
    options = [*firmware("uefi", tmp_path), *medium("usb", edited)]
    shown = boot_live(options, edited)
    assert shown[f"vda {NEW_FILE}"] == CONFIG
    assert f"vda1 {NEW_FILE}" not in shown


@pytest.mark.soak
def test_uefi_boots_from_no_partition_that_another_overlaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_no_partition(monkeypatch)
    edited = edit_systemd_boot_iso(tmp_path)
    options = [*firmware("uefi", tmp_path), *medium("usb", edited)]
    console = read_console(rb"BdsDxe: failed to load|end of report", *options)
    assert b"BdsDxe: failed to load" in console


def edit_systemd_boot_iso(directory: Path) -> str:
    """Return the path of an ISO to which a file in a new directory was added."""
    iso, edited = directory / "systemd.iso", directory / "edited.iso"
    make_systemd_boot_iso(iso, is_gpt=True)
    edited.write_bytes(edit(iso.read_bytes(), {NEW_FILE: CONFIG.encode()})[0])
    return str(edited)

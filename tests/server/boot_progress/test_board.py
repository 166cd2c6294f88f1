"""Mounts as the board shows them, from the records of the processes."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from image_service.core.families.iso_layout import BootPart
from image_service.core.images.boot_areas import BootArea
from image_service.server.boot_progress import board
from image_service.server.boot_progress.board import KEEP_SECONDS
from image_service.server.boot_progress.clients import DOCTOR
from tests.server.boot_progress.boots import (
    AREAS,
    INFRA_ENV,
    MIB,
    MINIMAL_AREAS,
    SIZE,
    STALL_SECONDS,
    Client,
    Site,
    iso,
    key,
    part,
)

if TYPE_CHECKING:
    from image_service.server.boot_progress.recording import ReadKey

GRUB_BLOCK = 32 * 1024
PROCESSES = pytest.mark.parametrize("processes", [1, 3])
BLOCKS = pytest.mark.parametrize("block", [1, 4096, GRUB_BLOCK])


@pytest.fixture
def site() -> Site:
    return Site()


def minimal(site: Site) -> Client:
    return site.client(iso(MINIMAL_AREAS), key("minimal-iso"))


@PROCESSES
@BLOCKS
def test_full_iso_passes_through_each_stage(processes: int, block: int) -> None:
    site = Site(processes)
    client = site.client()
    client.head()
    assert (site.mount()["stage"], site.mount()["bytes_read"]) == ("probed", 0)
    client.read(32768)
    assert site.mount()["stage"] == "probed"
    client.read(part(BootPart.FIRMWARE).start)
    assert site.mount()["stage"] == "firmware"
    client.read(part(BootPart.BOOT_LOADER).start // block * block)
    assert site.mount()["stage"] == "boot loader"
    client.read_part(BootPart.KERNEL, block)
    assert site.mount()["stage"] == "kernel"
    client.read_part(BootPart.INITRD, block)
    assert site.mount()["stage"] == "initrd"
    client.read_part(BootPart.CONFIG, block)
    assert (site.mount()["stage"], site.mount()["rootfs_percent"]) == (
        "ignition",
        pytest.approx(0.1, abs=0.1),
    )
    site.now += 30
    client.read(32768)  # by Linux, which looks for the medium
    client.read(part(BootPart.ROOTFS).start)
    assert site.mount()["stage"] == "root file system"
    client.read_part(BootPart.ROOTFS)
    assert (site.mount()["rootfs_percent"], site.mount()["stalled"]) == (100, False)
    assert site.mount()["state"] == "reading"
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["state"]) == ("root file system", "quiet")
    assert [each[:2] for each in site.ended] == [("root file system", "quiet")]


def test_boot_that_has_read_little_of_its_root_file_system_is_quiet_and_tells_how_much(site: Site) -> None:
    client = site.client()
    client.boot_until_ignition()
    client.read_part(BootPart.CONFIG)
    site.now += 1
    client.read(part(BootPart.ROOTFS).start)
    site.now += STALL_SECONDS + 1
    mount = site.mount()
    assert (mount["stage"], mount["state"]) == ("root file system", "quiet")
    assert 0 < mount["rootfs_percent"] < 5


@PROCESSES
@BLOCKS
def test_minimal_iso_is_quiet_after_ignition(processes: int, block: int) -> None:
    site = Site(processes)
    client = minimal(site)
    client.boot_until_ignition(block)
    assert site.mount()["stage"] == "initrd"
    client.read_part(BootPart.CONFIG, block, step=64 * 1024)
    assert site.mount()["stage"] == "ignition"
    assert (site.mount()["state"], site.mount()["rootfs_percent"]) == ("reading", None)
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["state"]) == ("ignition", "quiet")


@pytest.mark.parametrize(
    ("last", "parts"),
    [
        ("initrd", {BootPart.ROOTFS, BootPart.CONFIG}),
        ("ignition", {BootPart.ROOTFS}),
    ],
)
def test_live_system_in_an_initrd_is_quiet_once_it_is_loaded(
    site: Site, last: str, parts: set[BootPart]
) -> None:
    """As Debian's installer and Talos are; their ISO is a full one."""
    client = site.client(iso([area for area in AREAS if area.part not in parts]))
    client.boot_until_ignition()
    if last == "ignition":
        client.read_part(BootPart.CONFIG)
    assert (site.mount()["stage"], site.mount()["state"]) == (last, "reading")
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["state"]) == (last, "quiet")


def test_unified_kernel_is_quiet_once_firmware_reads_no_more(site: Site) -> None:
    client = site.client(iso([area for area in AREAS if area.part is BootPart.FIRMWARE]))
    client.read(32768)
    client.read_part(BootPart.FIRMWARE, step=64 * 1024)
    assert site.mount()["stage"] == "firmware"
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["state"]) == ("firmware", "quiet")


def test_initrd_loaded_in_a_block_with_ignition_is_not_ignition_yet(site: Site) -> None:
    """GRUB's block with the beginning of the initrd has the end of the Ignition area."""
    client = minimal(site)
    client.boot_until_ignition(GRUB_BLOCK)
    site.now += 2
    assert site.mount()["stage"] == "initrd"


def test_kernel_loaded_in_a_block_with_the_end_of_the_root_file_system_is_not_that_yet(site: Site) -> None:
    """As GRUB does from an ISO of live-build, where the root file system ends within the block."""
    end = part(BootPart.KERNEL).start + 2048
    moved = {
        BootPart.ROOTFS: BootArea(BootPart.ROOTFS, part(BootPart.ROOTFS).start, end),
        BootPart.KERNEL: BootArea(BootPart.KERNEL, end, part(BootPart.KERNEL).stop),
    }
    client = site.client(iso([moved.get(area.part, area) for area in AREAS]))
    client.read_part(BootPart.KERNEL, GRUB_BLOCK)
    assert site.mount()["stage"] == "kernel"


@pytest.mark.parametrize(
    ("parts", "stage"),
    [
        ([], "probed"),
        ([BootPart.FIRMWARE], "firmware"),
        ([BootPart.FIRMWARE, BootPart.BOOT_LOADER], "boot loader"),
        ([BootPart.KERNEL], "kernel"),
        ([BootPart.KERNEL, BootPart.INITRD], "initrd"),
    ],
)
def test_boot_that_ends_early_is_stalled(site: Site, parts: list[BootPart], stage: str) -> None:
    client = site.client()
    client.read(32768)
    for wanted in parts:
        client.read_part(wanted)
    site.now += STALL_SECONDS - 1
    assert not site.mount()["stalled"]
    site.now += 2
    assert (site.mount()["stage"], site.mount()["stalled"]) == (stage, True)
    assert [each[:2] for each in site.ended] == [(stage, "stalled")]


def test_full_iso_is_stalled_between_ignition_and_root_file_system(site: Site) -> None:
    client = site.client()
    client.boot_until_ignition()
    client.read_part(BootPart.CONFIG)
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["stalled"]) == ("ignition", True)


def test_stages_never_go_back(site: Site) -> None:
    client = site.client()
    client.boot_until_ignition()
    client.read(part(BootPart.FIRMWARE).start)
    assert site.mount()["stage"] == "initrd"


def test_image_read_as_a_whole_has_no_stage_but_a_per_cent(site: Site) -> None:
    content = site.client().download(SIZE // 4)
    assert (site.mount()["stage"], site.mount()["rootfs_percent"]) == (None, pytest.approx(25, abs=0.1))
    content.record(SIZE)
    assert (site.mount()["bytes_read"], site.mount()["rootfs_percent"]) == (SIZE, 100)
    assert site.mount()["state"] == "done"
    assert site.ended == []
    site.now += STALL_SECONDS + 1
    assert site.mount()["stalled"] is False
    assert site.ended == [(None, "done", SIZE)]


@pytest.mark.parametrize("kind", ["full-iso", "minimal-iso"])
def test_image_that_is_smaller_than_a_range_of_firmware_is_read_as_a_whole(site: Site, kind: str) -> None:
    site.client(iso((), MIB), key(kind)).download(MIB)
    assert (site.mount()["stage"], site.mount()["rootfs_percent"]) == (None, 100)


def test_doctor_does_not_boot_and_never_stalls(site: Site) -> None:
    client = site.client()
    reads = site.recorders[0].find(client.key, client.image)
    reads.client = DOCTOR
    client.read(32768)
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["state"]) == (None, "aborted")


@pytest.mark.parametrize(
    ("client", "state"),
    [("curl", "aborted"), ("browser", "aborted"), ("iDRAC", "stalled"), (None, "stalled")],
)
def test_download_that_ends_early_is_stalled_if_a_machine_may_wait_for_it(
    site: Site, client: str | None, state: str
) -> None:
    downloading = site.client()
    downloading.download(MIB)
    site.recorders[0].find(downloading.key, downloading.image).client = client
    assert site.mount()["state"] == "reading"
    site.now += STALL_SECONDS + 1
    assert (site.mount()["state"], site.mount()["stalled"]) == (state, state == "stalled")


def test_image_read_in_order_by_small_ranges_has_no_stage(site: Site) -> None:
    client = site.client()
    for start in range(0, 200 * MIB, MIB):
        client.read(start, MIB, ahead=0)
    assert site.mount()["stage"] is None


def test_unfinished_download_of_an_iso_is_stalled(site: Site) -> None:
    site.client().download(MIB)
    site.now += STALL_SECONDS + 1
    assert site.mount()["stalled"]


def test_boot_artifact_has_a_per_cent_and_never_stalls(site: Site) -> None:
    site.client(iso((), 10 * MIB), key("rootfs.img")).download(5 * MIB)
    site.now += STALL_SECONDS + 1
    mount = site.mount()
    assert (mount["stage"], mount["rootfs_percent"], mount["stalled"]) == (
        None,
        pytest.approx(50, abs=1),
        False,
    )


def test_reopened_medium_is_a_new_mount(site: Site) -> None:
    client = site.client()
    client.boot_until_ignition()
    site.collect()
    client.head()
    client.read(32768)
    assert (site.mount()["stage"], len(site.ended)) == ("probed", 1)


def test_linux_that_probes_the_medium_is_the_same_mount(site: Site) -> None:
    client = minimal(site)
    client.boot_until_ignition()
    client.read_part(BootPart.CONFIG)
    site.collect()
    site.now += 30
    client.read(0)
    client.read(32768)
    site.now += STALL_SECONDS + 1
    assert (site.mount()["stage"], site.mount()["state"]) == ("ignition", "quiet")
    assert len(site.board.describe_all()) == 1


def test_stalled_boot_that_begins_again_is_a_new_mount(site: Site) -> None:
    client = site.client()
    client.boot_until_ignition()
    site.collect()
    site.now += STALL_SECONDS + 1
    client.read(32768)
    assert (site.mount()["stage"], site.mount()["stalled"]) == ("probed", False)


def test_second_download_is_a_new_mount(site: Site) -> None:
    site.client().download(SIZE)
    site.collect()
    site.client().download(MIB)
    assert site.mount()["rootfs_percent"] < 1


def test_client_and_image_are_described(site: Site) -> None:
    client = site.client()
    reads = site.recorders[0].find(client.key, client.image)
    reads.client, reads.user_agent = "curl", "curl/7.88.1"
    client.read(32768, ahead=0)
    site.now += 5
    mount = site.mount()
    assert json.loads(json.dumps(mount)) == {
        "infra_env": "5a3b1e00-0000-4000-8000-000000000001",
        "infra_env_name": None,
        "previous_infra_env": None,
        "version": "9.6",
        "cpu_architecture": "x86_64",
        "kind": "full-iso",
        "address": "192.0.2.1",
        "client": "curl",
        "user_agent": "curl/7.88.1",
        "since": "2026-01-02T00:16:40Z",
        "last_read": "2026-01-02T00:16:40Z",
        "bytes_read": MIB,
        "size": SIZE,
        "rate": round(2048 / 5),
        "rates": [0] * 20,
        "stage": "probed",
        "stage_since": "2026-01-02T00:16:40Z",
        "last_stage": "root file system",
        "state": "reading",
        "rootfs_percent": 0.0,
        "stalled": False,
    }


OTHER = "5a3b1e00-0000-4000-8000-000000000002"


def previous(site: Site) -> list[tuple[str, str | None]]:
    """Return the infra-env of each mount, the latest first, with the one before."""
    return [(each["infra_env"], each["previous_infra_env"]) for each in site.mounts()]


def begin(site: Site, mount_key: ReadKey) -> Client:
    """Begin to boot, and collect."""
    client = site.client(mount_key=mount_key)
    client.read(32768)
    client.read(part(BootPart.FIRMWARE).start)
    site.collect()
    site.now += 1
    return client


@PROCESSES
def test_host_that_boots_the_image_of_another_infra_env_is_told(processes: int) -> None:
    site = Site(processes)
    begin(site, key())
    assert (previous(site), site.board.count_moved()) == ([(INFRA_ENV, None)], 0)
    begin(site, key("minimal-iso", infra_env=OTHER))
    assert (previous(site), site.board.count_moved()) == ([(OTHER, INFRA_ENV), (INFRA_ENV, None)], 1)
    site.now += STALL_SECONDS
    assert site.board.count_moved() == 0
    site.now += KEEP_SECONDS / 2
    begin(site, key(infra_env=OTHER))  # again
    site.now += KEEP_SECONDS / 2
    assert previous(site) == [(OTHER, INFRA_ENV)]


def test_host_that_goes_back_is_told_for_the_image_that_it_reads_now(site: Site) -> None:
    begin(site, key())
    begin(site, key(infra_env=OTHER))
    site.now += 2 * STALL_SECONDS
    begin(site, key())
    assert (previous(site), site.board.count_moved()) == ([(INFRA_ENV, OTHER), (OTHER, None)], 1)


@pytest.mark.parametrize(
    "mount_key",
    [
        key(),
        key("minimal-iso"),
        key("rootfs.img", infra_env=None),
        key(address="192.0.2.2", infra_env=OTHER),
    ],
)
def test_other_image_or_other_address_is_not_another_infra_env(site: Site, mount_key: ReadKey) -> None:
    begin(site, key())
    begin(site, mount_key)
    assert {each["previous_infra_env"] for each in site.mounts()} == {None}
    assert site.board.count_moved() == 0


def test_artifact_between_two_images_hides_no_infra_env(site: Site) -> None:
    begin(site, key())
    begin(site, key("rootfs.img", infra_env=None))
    begin(site, key(infra_env=OTHER))
    assert previous(site)[0] == (OTHER, INFRA_ENV)


def test_address_of_several_hosts_is_not_told(site: Site) -> None:
    first = begin(site, key())
    begin(site, key(infra_env=OTHER))
    assert site.board.count_moved() == 1
    first.read_part(BootPart.KERNEL)
    assert (site.mounts()[1]["previous_infra_env"], site.board.count_moved()) == (None, 0)


def test_infra_env_that_is_forgotten_is_not_told(site: Site) -> None:
    begin(site, key())
    site.now += KEEP_SECONDS
    site.collect()
    begin(site, key(infra_env=OTHER))
    assert previous(site) == [(OTHER, None)]


@pytest.mark.parametrize(
    ("client_name", "moved"),
    [("curl", 0), ("", 0), ("UEFI HTTP Boot (OVMF, EDK2)", 1), ("iPXE", 1), (DOCTOR, 0)],
)
def test_download_is_a_boot_for_machines_alone(site: Site, client_name: str, moved: int) -> None:
    begin(site, key())
    client = site.client(mount_key=key(infra_env=OTHER))
    reads = site.recorders[0].find(client.key, client.image)
    reads.client = client_name or None
    client.download(SIZE // 2)
    assert (previous(site)[0], site.board.count_moved()) == ((OTHER, INFRA_ENV), moved)


@pytest.mark.parametrize(
    ("client_name", "user_agent", "shown"),
    [(None, "unknown/1", None), ("iPXE", "iPXE/1.21", "iPXE"), (None, "", "curl"), ("qemu", "", "qemu")],
)
def test_name_of_another_program_at_the_address_is_not_kept(
    site: Site, client_name: str | None, user_agent: str, shown: str | None
) -> None:
    client = site.client()
    reads = site.recorders[0].find(client.key, client.image)
    reads.client, reads.user_agent = "curl", "curl/7.88.1"
    client.read(32768, ahead=0)
    site.collect()
    reads.client, reads.user_agent = client_name, user_agent
    client.read(65536, ahead=0)
    assert site.mount()["client"] == shown


def test_rate_is_that_of_the_last_seconds(site: Site) -> None:
    client = site.client()
    for _ in range(60):
        site.now += 0.99
        client.read(32768, MIB, ahead=0)
        site.collect()
    assert site.mount()["rate"] == pytest.approx(MIB, rel=0.15)
    site.now += 30
    assert site.mount()["rate"] == 0


def test_rates_are_those_of_the_intervals_that_have_ended(site: Site) -> None:
    site.now = 1500.0  # an interval begins
    client = site.client()
    for megabytes in (1, 2, 0, 3):
        client.read(0, megabytes * MIB, ahead=0)
        client.read(MIB, megabytes * MIB, ahead=0)
        site.collect()
        site.now += 15
    rates = site.mount()["rates"]
    assert len(rates) == 20
    assert rates[-4:] == [2 * megabytes * MIB // 15 for megabytes in (1, 2, 0, 3)]
    assert set(rates[:-4]) == {0}
    site.now += 20 * 15
    assert set(site.mount()["rates"]) == {0}


def test_stage_says_since_when_and_which_is_the_last(site: Site) -> None:
    client = minimal(site)
    client.read(32768)
    assert (site.mount()["stage_since"], site.mount()["last_stage"]) == ("2026-01-02T00:16:40Z", "ignition")
    site.now += 60
    client.read(part(BootPart.FIRMWARE).start)
    site.collect()
    site.now += 60
    client.read(part(BootPart.FIRMWARE).start)
    assert (site.mount()["stage"], site.mount()["stage_since"]) == ("firmware", "2026-01-02T00:17:40Z")


def test_name_of_an_infra_env_is_told_and_a_new_one_is_a_change(site: Site) -> None:
    site.board.name_infra_envs({INFRA_ENV: "rack 1"})
    site.client().read(0)
    site.client(mount_key=key(infra_env=OTHER, address="192.0.2.2")).read(0)
    assert {mount["infra_env_name"] for mount in site.mounts()} == {"rack 1", None}
    revision = site.board.revision
    site.board.name_infra_envs({INFRA_ENV: "rack 1"})
    assert list(site.board.changes(revision)) == []
    site.board.name_infra_envs({INFRA_ENV: "rack 2", OTHER: ""})
    changed = {mount["infra_env"]: mount["infra_env_name"] for _, mount in site.board.changes(revision)}
    assert changed == {INFRA_ENV: "rack 2", OTHER: None}


def test_only_changed_mounts_are_changes(site: Site) -> None:
    one, other = site.client(), site.client(mount_key=key(address="192.0.2.2"))
    one.read(0)
    other.read(0)
    site.collect()
    revisions = [revision for revision, _ in site.board.changes(0)]
    assert len(revisions) == 2
    one.read(32768)
    site.collect()
    ((revision, mount),) = site.board.changes(revisions[-1])
    assert (mount["address"], revision) == ("192.0.2.1", site.board.revision)


def test_streams_share_the_description_of_a_change(site: Site) -> None:
    client = site.client()
    client.read(0)
    site.collect()
    ((_, first),) = site.board.changes(0)
    ((_, second),) = site.board.changes(0)
    assert first is second
    client.read(32768)
    site.collect()
    ((_, third),) = site.board.changes(0)
    assert third is not first


def test_end_of_a_boot_is_a_change(site: Site) -> None:
    client = minimal(site)
    client.boot_until_ignition()
    client.read_part(BootPart.CONFIG)
    site.collect()
    revision = site.board.revision
    site.now += STALL_SECONDS + 1
    site.collect()
    assert [mount["state"] for _, mount in site.board.changes(revision)] == ["quiet"]
    revision = site.board.revision
    site.collect()
    assert list(site.board.changes(revision)) == []


def test_rate_that_falls_to_nothing_is_a_change(site: Site) -> None:
    site.client().read(32768)
    site.now += 1
    site.collect()
    revision = site.board.revision
    site.now += 11
    site.collect()
    assert [mount["rate"] for _, mount in site.board.changes(revision)] == [0]


def test_quiet_mount_is_forgotten_and_the_number_is_limited(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MAX_RECORDS", 100)
    site.client().read(0)
    site.collect()
    site.now += KEEP_SECONDS + 1
    assert site.mounts() == []
    for number in range(102):
        site.client(mount_key=key(address=str(number))).read(0)
    assert len(site.mounts()) == 100
    assert {each["address"] for each in site.mounts()}.isdisjoint({"0", "1"})


def test_memory_of_a_mount_does_not_grow_with_its_reads(site: Site) -> None:
    number = 20
    clients = [site.client(mount_key=key(address=f"192.0.2.{count}")) for count in range(number)]
    tracemalloc.start()
    try:
        for turn in range(60):
            site.now += board.INTERVAL_SECONDS
            for client in clients:
                client.read(turn * 19 * MIB % SIZE)
            site.collect()
            assert len(list(site.board.changes(0))) == number
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes / number < 10_000


def test_all_mounts_are_reported_when_the_service_stops(site: Site) -> None:
    site.client().read(32768)
    site.collect()
    site.board.close()
    assert [stage for stage, _, _ in site.ended] == ["probed"]

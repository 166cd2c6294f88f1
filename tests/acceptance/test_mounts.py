"""The mounts that the administrative listener shows, while recorded traces of firmware are played."""

from __future__ import annotations

import http.client
import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import pytest

from image_service.core.formats.iso9660.volume import read_iso9660
from tests.acceptance.service import SERVE, Service, fetch, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.core.families.coreos.miniso_builder import add_minimal_iso
from tests.core.formats.filesystems.iso_builder import live_files
from tests.core.formats.reading import reader
from tests.ports import free_port
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.core.formats.reading import Span

pytestmark = pytest.mark.acceptance

VERSION = "4.20"
MIB = 1024 * 1024
READ_AHEAD = 256 * 1024
CONFIG = {"ignition": {"version": "3.4.0"}}
FILES = {
    "images/efiboot.img": MIB,
    "images/pxeboot/initrd.img": 5 * MIB,
    "images/pxeboot/vmlinuz": 2 * MIB,
    "isolinux/isolinux.bin": 38 * 1024,
}


@attrs.frozen
class Site:
    """A service with an administrative listener, and an ISO that is like real ones."""

    service: Service
    admin_url: str

    def mounts(self) -> list[dict[str, Any]]:
        """Return the mounts."""
        answer = fetch(f"{self.admin_url}/api/v1/mounts")
        assert answer.status == 200, answer
        mounts: list[dict[str, Any]] = json.loads(answer.body)["mounts"]
        return mounts

    def mount(self, infra_env: str | None, kind: str) -> dict[str, Any]:
        """Return the mount of an image."""
        (found,) = [each for each in self.mounts() if (each["infra_env"], each["kind"]) == (infra_env, kind)]
        return found


@attrs.frozen
class Medium:
    """An image that firmware reads, range by range, with read-ahead."""

    service: Service
    path: str
    image: bytes
    connection: http.client.HTTPConnection

    def read(self, offset: int, length: int = 2048) -> None:
        """Read sectors, and those that follow."""
        last = min(offset + length + READ_AHEAD, len(self.image)) - 1
        self.connection.request(
            "GET", self.path, headers={"Range": f"bytes={offset}-{last}", "Accept": "*/*"}
        )
        answer = self.connection.getresponse()
        assert (answer.status, answer.read()) == (206, self.image[offset : last + 1])

    def read_file(self, path: str) -> None:
        """Read a file from its beginning to its end."""
        file = self.find(path)
        for offset in range(file.offset, file.offset + file.length, MIB):
            self.read(offset, min(MIB, file.offset + file.length - offset))

    def find(self, path: str) -> Span:
        """Return where a file is."""
        return read_iso9660(reader(self.image), len(self.image)).find_file(path)


@contextmanager
def running_site(directory: Path, **environment: str) -> Iterator[Site]:
    files = {**live_files(rootfs=bytes(8 * MIB)), **{path: bytes(size) for path, size in FILES.items()}}
    iso = directory / "live.iso"
    iso.write_bytes(add_minimal_iso(files))
    port = free_port()
    variables = {"ADMIN_LISTEN": f"127.0.0.1:{port}", **environment}
    command = (*SERVE, "--standalone")
    with run_service(directory, [os_image(iso, VERSION)], command=command, environment=variables) as service:
        wait_for(lambda: all(service.get("/health").status == 200 for _ in range(10)))  # in all workers
        yield Site(service, f"http://127.0.0.1:{port}")


@contextmanager
def opened(site: Site, infra_env: str, file: str) -> Iterator[Medium]:
    """Open a medium as qemu does."""
    path = f"/byid/{infra_env}/{VERSION}/x86_64/{file}"
    image = site.service.get_image(path, {"User-Agent": "test", "X-Forwarded-For": "192.0.2.77"}).body
    connection = http.client.HTTPConnection(urlsplit(site.service.url).netloc, timeout=100)
    with closing(connection):
        connection.putrequest("HEAD", path, skip_accept_encoding=True)
        connection.endheaders()
        connection.getresponse().read()
        yield Medium(site.service, path, image, connection)


@pytest.mark.parametrize("workers", ONE_OR_TWO)
def test_played_boots_pass_through_each_stage(tmp_path: Path, workers: int) -> None:
    proxies = {"TRUSTED_PROXIES": "127.0.0.1"}
    with running_site(tmp_path, WORKERS=str(workers), MOUNT_STALL_SECONDS="2", **proxies) as site:
        for kind in ("full", "minimal"):
            infra_env = site.service.register(VERSION, CONFIG)
            with opened(site, infra_env, f"{kind}.iso") as medium:
                _boot(site, infra_env, medium, kind)


def _boot(site: Site, infra_env: str, medium: Medium, kind: str) -> None:
    def mount() -> dict[str, Any]:
        mounts = [each for each in site.mounts() if each["address"] == "127.0.0.1"]
        (found,) = [each for each in mounts if each["infra_env"] == infra_env]
        return found

    assert (mount()["stage"], mount()["bytes_read"]) == ("probed", 0)  # after a HEAD
    medium.read(32768)
    found = mount()
    assert found["stage"] == "probed"
    assert found["infra_env_name"] == VERSION  # by one GET, whichever process has sent it
    assert (found["client"], found["kind"], found["size"]) == ("qemu", f"{kind}-iso", len(medium.image))
    assert READ_AHEAD <= found["bytes_read"] <= 2 * READ_AHEAD
    medium.read(medium.find("images/efiboot.img").offset)
    assert mount()["stage"] == "firmware"
    medium.read(medium.find("EFI/redhat/grub.cfg").offset)
    assert mount()["stage"] == "boot loader"
    medium.read_file("images/pxeboot/vmlinuz")
    assert mount()["stage"] == "kernel"
    medium.read_file("images/pxeboot/initrd.img")
    assert mount()["stage"] == "initrd"
    ignition = medium.find("images/ignition.img")
    medium.read(ignition.offset, ignition.length)
    if kind == "minimal":
        wait_for(lambda: mount()["state"] == "quiet")
        assert (mount()["stage"], mount()["stalled"]) == ("ignition", False)
        return
    assert (mount()["stage"], mount()["rootfs_percent"]) == ("ignition", pytest.approx(3, abs=3))
    medium.read_file("images/pxeboot/rootfs.img")
    assert (mount()["stage"], mount()["rootfs_percent"]) == ("root file system", 100)
    wait_for(lambda: mount()["state"] == "quiet")
    site.service.wait_for(
        rf"(mount of {infra_env} full-iso 4.20 by 127.0.0.1 \(qemu\) quiet: root file system 100.0 %,"
        r" \d+ bytes)"
    )


def test_failures_and_events_are_those_of_all_workers(tmp_path: Path) -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
    with running_site(tmp_path, WORKERS="2") as site:
        infra_env = site.service.register(VERSION, CONFIG)
        for _ in range(4):
            assert site.service.get(f"/bytoken/{token}/0.1/x86_64/full.iso").status == 404
            assert site.service.get_image(f"/byid/{infra_env}/{VERSION}/x86_64/full.iso").status == 200
        answer = fetch(f"{site.admin_url}/api/v1/failures")
        failures = [each for each in json.loads(answer.body)["failures"] if each["status"] == 404]
        assert [each["path"] for each in failures] == ["/bytoken/***/0.1/x86_64/full.iso"] * 4
        assert {each["client"] for each in failures} == {"127.0.0.1"}
        connection = http.client.HTTPConnection(urlsplit(site.admin_url).netloc, timeout=100)
        with closing(connection):
            connection.request("GET", "/api/v1/events")
            events = connection.getresponse()
            assert events.headers["Content-Type"] == "text/event-stream"
            seen: set[str] = set()
            while seen != {"failure", "image", "mount"}:
                seen.add(json.loads(_data(events))["type"])
            site.service.get("/nowhere")
            while (event := json.loads(_data(events))).get("failure", {}).get("path") != "/nowhere":
                assert event["type"] in seen
        images = json.loads(fetch(f"{site.admin_url}/api/v1/images").body)["images"]
        assert [each["version"] for each in images] == [VERSION]
        for page in (answer.body, site.service.output):
            assert token.encode() not in page


def _data(events: http.client.HTTPResponse) -> str:
    """Return the data of the next event."""
    while not (line := events.readline().decode()).startswith("data: "):
        pass
    return line.removeprefix("data: ")

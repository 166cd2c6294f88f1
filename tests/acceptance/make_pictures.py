"""Make the pictures of the status page from a real run: ``python -m tests.acceptance.make_pictures``.

Two replicas serve machines that are in several stages of their boots. It needs root, because each replica has
a host name of its own, Chromium, PostgreSQL and mksquashfs.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
from selenium.webdriver.common.keys import Keys

from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.browser import running_browser
from tests.acceptance.console import TOKEN, Console
from tests.acceptance.make_sample import pack_rootfs
from tests.acceptance.media import master_live
from tests.acceptance.service import CHECKOUT, ONE_ATTEMPT, SERVE, Service, run_service
from tests.acceptance.test_mounts import CONFIG, FILES, MIB, Site
from tests.core.formats.filesystems.iso_builder import VOLUME_ID, live_files
from tests.core.formats.reading import reader
from tests.ports import free_port
from tests.postgres import running_postgres
from tests.server.catalog.origin import Reply, Resource, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.server.catalog.origin import Origin

DIRECTORY = CHECKOUT / "docs/images"
BASE_URL = "http://images.example.com:8080"
VERSION = "9.6.20250826-0"
STALL_SECONDS = 20
MARGIN = 12
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{'A' * 48} admin@example.com"
NETWORK = """\
- mac_interface_map:
  - {mac_address: "52:54:00:12:34:56", logical_nic_name: eth0}
  network_yaml: |
    interfaces:
    - name: eth0
      type: ethernet
      state: up
      ipv4: {enabled: true, dhcp: false, address: [{ip: 192.0.2.10, prefix-length: 24}]}
"""
BOOT = ("EFI/redhat/grub.cfg", "images/pxeboot/vmlinuz", "images/pxeboot/initrd.img", "images/ignition.img")


@attrs.frozen
class Machine:
    """A client that reads an image by ranges."""

    address: str
    agent: str
    files: Sequence[str] = BOOT
    rootfs_share: float = 0


MACHINES = (
    Machine("192.0.2.11", "iDRAC/9", rootfs_share=0.96),
    Machine("192.0.2.12", "iDRAC/9", rootfs_share=0.03),
    Machine("192.0.2.13", "iDRAC/9", BOOT[:2]),
)
READING = (Machine("192.0.2.21", "UefiHttpBoot/1.0", BOOT[:3]), Machine("192.0.2.22", "HPE-iLO", BOOT, 0.4))


def make_iso(directory: Path) -> bytes:
    """Return a live ISO that is ready, with a kernel, an initrd and a root file system of some MiB."""
    rootfs = pack_rootfs(directory) + write_archive([Member("data", bytes(12 * MIB), 0o100644)])
    files = {**live_files(rootfs=rootfs), **{path: bytes(size) for path, size in FILES.items()}}
    master_live(directory / "live.iso", files, VOLUME_ID, "-no-pad")
    return (directory / "live.iso").read_bytes()


def base_images(origin: Origin, iso: bytes) -> list[Mapping[str, str]]:
    """Return `OS_IMAGES`: an image that is ready, one that is being downloaded, and one that is absent."""
    origin.serve("/rhcos-4.20.iso", Resource(iso))
    origin.serve("/rhcos-4.21.iso", Reply(bytes(9 * MIB), promised=len(iso), hold=True))
    versions = {"4.20": VERSION, "4.21": "9.6.20251015-1", "4.19": "9.6.20250523-0"}
    return [
        {
            "openshift_version": openshift,
            "cpu_architecture": "x86_64",
            "version": version,
            "url": origin.url(f"/rhcos-{openshift}.iso"),
        }
        for openshift, version in versions.items()
    ]


def read(service: Service, infra_env: str, machine: Machine, image: bytes) -> None:
    """Read an image as a machine that boots from it does."""
    headers = {"User-Agent": machine.agent, "X-Forwarded-For": machine.address}
    path = image_path(infra_env)

    def read_range(offset: int, length: int) -> None:
        fields = {**headers, "Range": f"bytes={offset}-{offset + length - 1}"}
        assert service.get_image(path, fields).status == 206

    read_range(32768, 2048)
    volume = read_iso9660(reader(image), len(image))
    for file in map(volume.find_file, machine.files):
        read_range(file.offset, file.length)
    rootfs = volume.find_file("images/pxeboot/rootfs.img")
    length = int(rootfs.length * machine.rootfs_share)
    for offset in range(0, length, MIB):
        read_range(rootfs.offset + offset, min(MIB, length - offset))


def image_path(infra_env: str, file: str = "full.iso") -> str:
    """Return the path of an image."""
    return f"/byid/{infra_env}/{VERSION}/x86_64/{file}"


def play(service: Service, rack: Sequence[str], image: bytes) -> None:
    """Have machines boot, a person download, and clients fail."""
    for infra_env, machine in zip(rack, MACHINES, strict=False):
        read(service, infra_env, machine, image)
    for name in ("ful.iso", "ful.iso", "FULL.ISO"):
        headers = {"User-Agent": "curl/8.5.0", "X-Forwarded-For": "192.0.2.40"}
        service.get(image_path(rack[0], name), headers)
    service.get(
        f"/byid/{rack[0]}/4.18/x86_64/full.iso", {"User-Agent": "HPE-iLO", "X-Forwarded-For": "192.0.2.23"}
    )


def play_now(service: Service, rack: Sequence[str], lab: str, image: bytes) -> None:
    """Have machines read that the pictures show while they read."""
    for infra_env, machine in zip(rack, READING, strict=False):
        read(service, infra_env, machine, image)
    headers = {"User-Agent": "curl/8.5.0", "X-Forwarded-For": "192.0.2.40"}
    service.get_image(image_path(lab, "minimal.iso"), headers)


def sites(stack: ExitStack, directory: Path, images: Sequence[Mapping[str, str]]) -> Iterator[Site]:
    """Start two replicas."""
    secret, token = directory / "secret", directory / "token"
    for file, text in ((secret, secrets.token_hex(32)), (token, TOKEN)):
        file.touch(mode=0o600)
        file.write_text(text)
    shared = {
        "DATABASE_URL": stack.enter_context(running_postgres()).create_database(),
        "INSTANCE_SECRET_FILE": str(secret),
        "ADMIN_TOKEN_FILE": str(token),
        "IMAGE_SERVICE_BASE_URL": BASE_URL,
        "MOUNT_STALL_SECONDS": str(STALL_SECONDS),
        "TRUSTED_PROXIES": "127.0.0.1",
        **ONE_ATTEMPT,
    }
    for host in ("images-1", "images-2"):
        own, port = directory / host, free_port()
        own.mkdir()
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host)
        service = stack.enter_context(
            run_service(
                own,
                images,
                command=(*named, *SERVE, "--standalone"),
                environment={**shared, "ADMIN_LISTEN": f"127.0.0.1:{port}"},
                probe="/live",
            )
        )
        yield Site(service, f"http://127.0.0.1:{port}")


def fill_form(console: Console) -> None:
    """Write a new image into the form."""
    browser = console.browser
    browser.find("#new-image").send_keys(Keys.ENTER)
    browser.wait_for(lambda: "4.20" in browser.find("#infra-env-form [name=base]").text)
    fields = {
        "name": "rack 7, worker 4",
        "hostname": "worker-4",
        "config": '{\n  "ignition": {"version": "3.4.0"},\n  "storage": {"files": []}\n}',
        "ssh_keys": KEY,
        "kernel_arguments": "console=ttyS0",
        "networks": NETWORK,
    }
    for name, text in fields.items():
        field = browser.find(f"#infra-env-form [name={name}]")
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        browser.run(script, field, text)
    console.wait_for_text("#config-check", "valid")
    console.wait_for_text("#networks-check", "valid")


def submit_form(console: Console) -> None:
    """Make the image, and show all of the result."""
    console.browser.find("#infra-env-form [type=submit]").send_keys(Keys.ENTER)
    console.wait_for_text("#infra-env-result-title", "Images of ")
    for label in ("ISO", "Minimal ISO", "Initrd"):
        console.wait_for_text("#infra-env-urls .label", f"{label}\n", "iB")
    console.press("Short link to ISO")
    console.wait_for_text("#infra-env-urls .made", "QR code")
    console.press("QR code of short link to ISO")
    drawn = "return document.querySelectorAll('.qr-code').length"
    console.browser.wait_for(lambda: console.browser.run(drawn))


def make_pictures(directory: Path) -> None:
    """Write all pictures."""
    iso = make_iso(directory)
    with ExitStack() as stack:
        origin = stack.enter_context(running())
        site, _ = sites(stack, directory, base_images(origin, iso))
        browser = stack.enter_context(running_browser(directory / "profile"))
        console = Console(site, browser)
        rack = [
            site.service.register("4.20", CONFIG, name=f"rack 7, worker {number}") for number in (1, 2, 3)
        ]
        lab = site.service.register("4.20", CONFIG, ["console=ttyS0"], name="lab")
        play(site.service, rack, iso)

        browser.show_as(800)
        console.open()
        browser.wait_for(browser.find("#login").is_displayed)
        browser.save_screenshot(DIRECTORY / "sign-in.webp", "#login", MARGIN)
        console.sign_in()
        console.wait_for_text("#summary", "all 2 replicas")
        browser.show_as(1280)
        fill_form(console)
        browser.save_screenshot(DIRECTORY / "new-image-form.webp", "#infra-env-form", MARGIN)
        submit_form(console)
        browser.save_screenshot(DIRECTORY / "new-image-result.webp", "#infra-env-result", MARGIN)
        console.wait_for_text("#mounts .group", "stalled for")
        console.wait_for_text("#mounts .group", "quiet for")

        play_now(site.service, rack[1:], lab, iso)
        console.open()
        console.wait_for_text("#mounts .group", "done")
        browser.show_as(1600)
        browser.save_screenshot(DIRECTORY / "status-page-wide-light.webp")
        browser.show_as(800, scheme="dark")
        browser.save_screenshot(DIRECTORY / "status-page-middle-dark.webp")
        browser.show_as(390)
        browser.save_screenshot(DIRECTORY / "status-page-narrow-light.webp", "#mounts")


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        make_pictures(Path(made))

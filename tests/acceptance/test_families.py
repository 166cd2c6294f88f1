"""Base images of other families than CoreOS, served by the service with the stand-in's configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.initrd import read_members
from tests.acceptance.clients import run_client
from tests.acceptance.service import INFRA_ENVS, Answer, Service, os_image, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.acceptance

DEBIAN, FEDORA, OTHER, UBUNTU = "12.5", "40", "1.0", "24.04"
GRUB = "menuentry x {\n  linux /vmlinuz vga=788 rd.live.check --- quiet\n  initrd /initrd.gz\n}\n"
FILES: Mapping[str, Mapping[str, str]] = {
    DEBIAN: {
        ".disk/info": "Debian GNU/Linux 12.5.0",
        "install.amd/vmlinuz": "the kernel",
        "install.amd/initrd.gz": "the initrd",
    },
    FEDORA: {".treeinfo": "[general]", "images/install.img": "x"},
    OTHER: {"readme": "of no family"},
    UBUNTU: {".disk/info": "Ubuntu-Server 24.04", "casper/vmlinuz": "k", "casper/initrd": "the initrd"},
}


def make_iso(directory: Path, version: str) -> Path:
    for path, text in {
        "boot/grub/grub.cfg": GRUB,
        "vmlinuz": "k",
        "initrd.gz": "i",
        **FILES[version],
    }.items():
        file = directory / version / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    image = directory / f"{version}.iso"
    run_client(
        "xorriso", "-as", "mkisofs", "-r", "-J", "-V", f"V-{version}", "-o", image, directory / version
    )
    return image


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("families")
    images = [os_image(make_iso(directory, version), version) for version in FILES]
    images[2]["family"] = "generic"
    with run_service(directory, images) as running:
        yield running


def register(service: Service, version: str, **fields: object) -> str:
    answer = service.ask_api(INFRA_ENVS, {"name": version, "openshift_version": version, **fields})
    assert answer.status == 201, answer
    return answer.json()["id"]


def url(infra_env: str, version: str, file: str = "full.iso") -> str:
    return f"/byid/{infra_env}/{version}/x86_64/{file}"


def read(answer: Answer, path: str, directory: Path) -> str:
    """Return a file of a served ISO as xorriso reads it."""
    assert answer.status == 200, answer
    image, file = directory / "served.iso", directory / "file"
    image.write_bytes(answer.body)
    file.unlink(missing_ok=True)
    run_client("xorriso", "-indev", image, "-osirrox", "on", "-extract", f"/{path}", file)
    return file.read_text(errors="replace")


def edits(**operations: str) -> list[dict[str, str]]:
    return [{"operation": operation, "value": value} for operation, value in operations.items()]


def test_preseed_and_arguments_are_in_debians_installer(service: Service, tmp_path: Path) -> None:
    arguments = edits(append="console=ttyS0", delete="vga=788")
    infra_env = register(
        service, DEBIAN, family_config="d-i partman/method string lvm", kernel_arguments=arguments
    )
    answer = service.get_image(url(infra_env, DEBIAN))
    menu = read(answer, "boot/grub/grub.cfg", tmp_path)
    assert "linux /vmlinuz auto=true priority=critical console=ttyS0 --- quiet\n" in menu
    assert "initrd /initrd.gz /image-service.img\n" in menu
    assert "d-i partman/method string lvm" in read(answer, "image-service.img", tmp_path)


def test_kickstart_is_in_fedoras_installer_and_the_check_of_the_medium_is_not(
    service: Service, tmp_path: Path
) -> None:
    infra_env = register(service, FEDORA, family_config="text\nreboot\n")
    answer = service.get_image(url(infra_env, FEDORA))
    assert read(answer, "ks.cfg", tmp_path) == "text\nreboot\n"
    menu = read(answer, "boot/grub/grub.cfg", tmp_path)
    assert "rd.live.check" not in menu
    assert ":/ks.cfg --- quiet\n" in menu


def test_ranges_are_those_of_one_image_with_one_tag(service: Service) -> None:
    path = url(register(service, DEBIAN, family_config="#" * 300_000), DEBIAN)
    whole = service.get_image(path)
    assert service.get_image(path).headers["ETag"] == whole.headers["ETag"]
    size = len(whole.body)
    for first, last in [(0, 0), (32768, 40000), (size // 2, size // 2 + 70000), (size - 5, size - 1)]:
        fields = {"Range": f"bytes={first}-{last}", "If-Range": whole.headers["ETag"]}
        part = service.get_image(path, fields)
        assert (part.status, part.body) == (206, whole.body[first : last + 1])


def test_changed_config_is_another_image(service: Service) -> None:
    infra_env = register(service, FEDORA, family_config="text")
    other = register(service, FEDORA, family_config="cmdline")
    tags = {service.get_image(url(each, FEDORA)).headers["ETag"] for each in (infra_env, other)}
    assert len(tags) == 2


@pytest.mark.parametrize(
    ("version", "fields", "status", "reason"),
    [
        (OTHER, {"family_config": "x"}, 422, "give files, arguments"),
        (DEBIAN, {"family_config": "d-i a strng b"}, 422, "line 1, column 7 of the preseed file has no type"),
        (DEBIAN, {}, 422, "whose config is a preseed file; the infra-env has an Ignition config"),
    ],
)
def test_config_without_a_place_is_refused(
    service: Service, version: str, fields: Mapping[str, object], status: int, reason: str
) -> None:
    document = {"name": "a", "openshift_version": version, **fields}
    answer = service.ask_api(INFRA_ENVS, document)
    if not fields:  # it may get its config later
        answer = service.get_image(url(answer.json()["id"], version))
    assert answer.status == status
    assert reason in answer.json()["detail"]


def test_arguments_alone_are_laid_over_an_iso_of_no_family(service: Service, tmp_path: Path) -> None:
    infra_env = register(service, OTHER, family_config="", kernel_arguments=edits(append="console=ttyS0"))
    menu = read(service.get_image(url(infra_env, OTHER)), "boot/grub/grub.cfg", tmp_path)
    assert "linux /vmlinuz vga=788 console=ttyS0 --- quiet\n" in menu


@pytest.mark.parametrize("file", ["minimal.iso"])
def test_other_images_do_not_exist(service: Service, file: str) -> None:
    answer = service.get(url(register(service, DEBIAN, family_config=""), DEBIAN, file))
    assert answer.status == 404
    assert "full-iso and config-iso only" in answer.body.decode()


def test_config_iso_has_the_label_and_the_path_of_its_family(service: Service, tmp_path: Path) -> None:
    infra_env = register(service, FEDORA, family_config="text\n")
    answer = service.get_image(url(infra_env, FEDORA, "config.iso"))
    assert len(answer.body) < 400 << 10
    assert read(answer, "ks.cfg", tmp_path) == "text\n"
    assert b"OEMDRV" in answer.body[32768:34816]
    assert service.get_image(url(infra_env, FEDORA, "config.iso")).headers["ETag"] == answer.headers["ETag"]
    refused = service.get_image(
        url(register(service, DEBIAN, family_config="d-i x string y"), DEBIAN, "config.iso")
    )
    assert refused.status == 422
    assert "reads no config from another medium" in refused.body.decode()


def test_debians_installer_boots_without_its_iso(service: Service) -> None:
    infra_env = register(
        service, DEBIAN, family_config="d-i x string y", kernel_arguments=edits(append="console=ttyS0")
    )
    query = f"?version={DEBIAN}&arch=x86_64"
    script = service.get_image(f"/images/{infra_env}/ipxe{query}").body.decode()
    assert " initrd=initrd auto=true priority=critical console=ttyS0\n" in script
    initrd = service.get_image(f"/images/{infra_env}/pxe-initrd{query}").body
    assert initrd.startswith(b"the initrd\0\0")
    assert read_members(initrd[12:])["preseed.cfg"].data == b"d-i x string y"
    kernel = service.get_image(f"/boot-artifacts/{DEBIAN}/x86_64/vmlinuz")
    assert kernel.body == b"the kernel"
    rootfs = service.get_image(f"/boot-artifacts/{DEBIAN}/x86_64/rootfs.img")
    assert rootfs.status == 404


def test_ubuntus_installer_fetches_its_iso_with_the_config(service: Service, tmp_path: Path) -> None:
    infra_env = register(service, UBUNTU, family_config="autoinstall: {version: 1}\n")
    script = service.get_image(f"/images/{infra_env}/ipxe?version={UBUNTU}&arch=x86_64").body.decode()
    (kernel,) = (line.split() for line in script.splitlines() if line.startswith("kernel "))
    assert kernel[-1] == "autoinstall"
    (iso,) = (word.removeprefix("url=") for word in kernel if word.startswith("url="))
    answer = service.get_image(f"/{iso.split('/', 3)[3]}")
    assert read(answer, "autoinstall.yaml", tmp_path) == "autoinstall: {version: 1}\n"
    initrd = service.get_image(f"/images/{infra_env}/pxe-initrd?version={UBUNTU}&arch=x86_64").body
    assert initrd.rstrip(b"\0") == b"the initrd"


def test_fedoras_installer_without_its_files_needs_its_iso(service: Service) -> None:
    infra_env = register(service, FEDORA, family_config="text")
    for file in ("ipxe", "pxe-initrd"):
        answer = service.get_image(f"/images/{infra_env}/{file}?version={FEDORA}&arch=x86_64")
        assert answer.status == 404
        assert "ISO" in answer.body.decode()


def test_secret_of_a_config_is_in_no_log(service: Service) -> None:
    infra_env = register(service, FEDORA, family_config="rootpw --plaintext topsecretword\n")
    service.get_image(url(infra_env, FEDORA))
    service.get_image(url(infra_env, FEDORA, "config.iso"))
    invalid = {"name": "a", "openshift_version": FEDORA, "family_config": "%post\ntopsecretword\n"}
    later = register(service, "unknown", family_config=invalid["family_config"])
    for file in ("full.iso", "config.iso"):
        answer = service.get(url(later, FEDORA, file))
        assert (answer.status, answer.json()["code"]) == (422, "config-invalid")
        assert "topsecretword" not in answer.body.decode()
    answer = service.ask_api(INFRA_ENVS, invalid)
    assert (answer.status, answer.json()["code"]) == (422, "config-invalid")
    assert "topsecretword" not in answer.body.decode()
    assert "topsecretword" not in service.get("/metrics").body.decode()
    assert b"topsecretword" not in service.output
    assert "topsecretword" not in service.ask_api(INFRA_ENVS).body.decode()

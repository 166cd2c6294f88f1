"""Every kind of image, with and without each thing that may be laid over it, as coreos-installer sees it."""

from __future__ import annotations

import lzma
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.formats.initrd import read_archives
from tests.acceptance.clients import run_client
from tests.acceptance.expected import check_image
from tests.acceptance.make_sample import PACKED
from tests.acceptance.ramdisk import NETWORK_FILE, make_ramdisk
from tests.acceptance.service import Service, os_image, run_service
from tests.acceptance.test_live_isos import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

X86_64, S390X = "x86_64", "s390x"
REAL = [architecture for architecture in (X86_64, S390X) if FIXTURES.exists()]
NMSTATE = "nmstate"
"""The version whose ramdisks need nmstatectl; of the others the sample's root file system has it in vain."""
CONFIG = {"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": "core"}]}}
RAMDISK = make_ramdisk("static network")
NMSTATECTL = "usr/bin/nmstatectl"
OPERATIONS = [
    {"operation": "append", "value": "rd.neednet=1"},
    {"operation": "delete", "value": "ignition.firstboot"},
    {"operation": "replace", "value": "ignition.platform.id=metal=qemu"},
]
EDITS = ["-a", "rd.neednet=1", "-d", "ignition.firstboot", "-r", "ignition.platform.id=metal=qemu"]


@attrs.frozen
class Case:
    """One field of the matrix."""

    version: str
    architecture: str
    ramdisk: bool
    arguments: bool

    def __str__(self) -> str:
        laid = [name for name in ("ramdisk", "arguments") if getattr(self, name)]
        return "-".join([self.version, self.architecture, *laid])


VERSIONS = [("sample", X86_64), (NMSTATE, X86_64), (NMSTATE, S390X), *(("real", real) for real in REAL)]
CASES = [Case(*version, *laid) for version, *laid in product(VERSIONS, (False, True), (False, True))]
MINIMAL = [case for case in CASES if case.architecture == X86_64]
every = pytest.mark.parametrize("case", CASES, ids=str)


@attrs.frozen
class Site:
    """The service, and the ISOs that it serves by version and architecture."""

    service: Service
    bases: dict[tuple[str, str], Path]

    @property
    def base_url(self) -> str:
        """What it calls itself where nobody says how it is reached."""
        return self.service.url.replace("127.0.0.1", "localhost")

    def base(self, case: Case) -> Path:
        """What is below."""
        return self.bases[case.version, case.architecture]

    def register(self, case: Case) -> str:
        """An infra-env that has what the case says."""
        return self.service.register(
            case.version,
            CONFIG,
            architecture=case.architecture,
            operations=OPERATIONS if case.arguments else [],
            ramdisk=RAMDISK if case.ramdisk else None,
        )

    def download(self, path: str, target: Path) -> Path:
        """Fetch with curl, which waits for what is being derived."""
        retry = ("--retry", "20", "--retry-delay", "1", "--silent", "--show-error", "--fail")
        run_client("curl", *retry, "--output", target, self.service.url + path)
        return target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("isos")
    sample = directory / "sample.iso"
    sample.write_bytes(lzma.decompress(PACKED.read_bytes()))
    bases = {("sample", X86_64): sample, (NMSTATE, X86_64): sample, (NMSTATE, S390X): sample}
    for architecture in REAL:
        bases["real", architecture] = directory / f"{architecture}.iso"
        packed = (FIXTURES / f"embed-areas-2023-07.{architecture}.iso.xz").read_bytes()
        bases["real", architecture].write_bytes(lzma.decompress(packed))
    images = [
        os_image(path, version, architecture)
        | {"openshift_version": "4.18.0-ec.0" if version == NMSTATE else "4.17.9"}
        for (version, architecture), path in bases.items()
    ]
    with run_service(tmp_path_factory.mktemp("service"), images) as service:
        yield Site(service, bases)


@every
def test_full_iso(case: Case, site: Site, tmp_path: Path) -> None:
    infra_env_id = site.register(case)
    path = f"/byid/{infra_env_id}/{case.version}/{case.architecture}/full.iso"
    image = site.download(path, tmp_path / f"{infra_env_id}-discovery.iso")
    config = site.service.ignition_config(infra_env_id)
    check_image(image, site.base(case), config, _edited(case, _default(site.base(case))))
    line = site.service.get_image(f"{path}.sha256").body
    assert _checked(line, tmp_path)


@pytest.mark.parametrize("case", MINIMAL, ids=str)
def test_minimal_iso(case: Case, site: Site, tmp_path: Path) -> None:
    infra_env_id = site.register(case)
    path = f"/images/{infra_env_id}?version={case.version}&type=minimal-iso"
    image = site.download(path, tmp_path / "minimal.iso")
    config = site.service.ignition_config(infra_env_id)
    assert run_client("coreos-installer", "iso", "ignition", "show", image) == config
    rootfs_url = f"{site.base_url}/boot-artifacts/{case.version}/{case.architecture}/rootfs.img"
    arguments = _default(site.base(case)).split()
    default = " ".join(word for word in arguments if not word.startswith("coreos.liveiso="))
    expected = _edited(case, f"{default} coreos.live.rootfs_url={rootfs_url}")
    shown = run_client("coreos-installer", "iso", "kargs", "show", image).decode().strip()
    assert shown == expected
    if case.version == NMSTATE and case.ramdisk:
        _check_derived(image)
        return
    _check_spliced(case, image, rootfs_url, site.base(case), tmp_path)


def _check_derived(image: Path) -> None:
    """The ramdisk, and nmstatectl, in files of their own."""
    assert _file_in(image, "images/assisted_installer_custom.img").rstrip(b"\0") == RAMDISK.rstrip(b"\0")
    assert [member.name for member in read_archives(_file_in(image, "images/nmstate.img"))][-1] == NMSTATECTL
    for config in ("EFI/redhat/grub.cfg", "isolinux/isolinux.cfg"):
        text = _file_in(image, config).decode()
        assert "/images/assisted_installer_custom.img" in text
        assert "/images/nmstate.img" in text


def _check_spliced(case: Case, image: Path, rootfs_url: str, base: Path, directory: Path) -> None:
    """Without config, ramdisk and other arguments it is what coreos-installer extracts."""
    members = [member.name for member in read_archives(_file_in(image, "images/ignition.img"))]
    assert (NETWORK_FILE in members) is case.ramdisk
    extracted = directory / "extracted.iso"
    extract = ("iso", "extract", "minimal-iso", "--rootfs-url", rootfs_url)
    run_client("coreos-installer", *extract, base, extracted)
    arguments = run_client("coreos-installer", "iso", "kargs", "show", extracted)
    if case.arguments:
        run_client("coreos-installer", "iso", "kargs", "modify", *EDITS, extracted)
    plain = directory / "plain.iso"
    remove = ("iso", "ignition", "remove", "--output", plain)
    if not case.ramdisk:
        run_client("coreos-installer", *remove, image)
        assert plain.read_bytes() == extracted.read_bytes()
    assert rootfs_url.encode() in arguments


@every
def test_pxe_initrd(case: Case, site: Site, tmp_path: Path) -> None:
    infra_env_id = site.register(case)
    path = f"/images/{infra_env_id}/pxe-initrd?version={case.version}&arch={case.architecture}"
    image = site.download(path, tmp_path / "initrd.img")
    initrd = _file_in(site.base(case), "images/pxeboot/initrd.img")
    assert image.read_bytes().startswith(initrd)
    appended = image.read_bytes()[len(initrd) :]
    assert not appended[: -len(initrd) % 4].strip(b"\0")
    files = {member.name: member.data for member in read_archives(appended)}
    assert files["config.ign"] == site.service.ignition_config(infra_env_id)
    assert (NETWORK_FILE in files) is case.ramdisk
    assert (NMSTATECTL in files) is (case.ramdisk and case.version == NMSTATE)
    archives = tmp_path / "archives.img"
    archives.write_bytes(appended.lstrip(b"\0"))
    unwrapped = run_client("coreos-installer", "pxe", "ignition", "unwrap", archives)
    assert unwrapped == site.service.ignition_config(infra_env_id)
    if case.architecture == S390X and case.version == "real":
        told = site.service.get(f"/images/{infra_env_id}/s390x-initrd-addrsize?version={case.version}").body
        assert told[:8] == _file_in(site.base(case), "images/initrd.addrsize")[:8]
        assert int.from_bytes(told[8:]) == image.stat().st_size


@pytest.mark.parametrize("architecture", REAL)
def test_boot_artifacts_equal_those_of_coreos_installer(
    architecture: str, site: Site, tmp_path: Path
) -> None:
    base = site.bases["real", architecture]
    run_client("coreos-installer", "iso", "extract", "pxe", "--output-dir", tmp_path, base)
    for served, extracted in (("vmlinuz", "vmlinuz"), ("initrd.img", "initrd.img"), ("rootfs.img",) * 2):
        answer = site.service.get(f"/boot-artifacts/real/{architecture}/{served}")
        assert answer.body == (tmp_path / f"{base.stem}-{extracted}").read_bytes()
        assert answer.headers["Cache-Control"].startswith("public")
    ins_file = site.service.get(f"/boot-artifacts/ins-file?version=4.17.9&arch={architecture}")
    assert ins_file.status == (200 if architecture == S390X else 404)


def test_s390x_has_no_minimal_iso(site: Site) -> None:
    case = Case(NMSTATE, S390X, ramdisk=False, arguments=False)
    answer = site.service.get_image(f"/byid/{site.register(case)}/{NMSTATE}/{S390X}/minimal.iso")
    assert answer.status == 404
    assert "s390x" in answer.json()["detail"]


def _default(base: Path) -> str:
    shown = run_client("coreos-installer", "iso", "kargs", "show", "--default", base)
    return shown.decode().strip()


def _edited(case: Case, arguments: str) -> str:
    if not case.arguments:
        return arguments
    words = [word for word in arguments.split() if word != "ignition.firstboot"]
    words = ["ignition.platform.id=qemu" if word == "ignition.platform.id=metal" else word for word in words]
    return " ".join([*words, "rd.neednet=1"])


def _file_in(image: Path, path: str) -> bytes:
    """What xorriso finds there."""
    with TemporaryDirectory() as directory:
        target = Path(directory) / "file"
        run_client("xorriso", "-osirrox", "on", "-indev", image, "-extract", f"/{path}", target)
        return target.read_bytes()


def _checked(line: bytes, directory: Path) -> bool:
    (directory / "digest").write_bytes(line)
    told = run_client("sh", "-c", f"cd {directory} && sha256sum --check --strict digest")
    return told.strip().endswith(b"OK")

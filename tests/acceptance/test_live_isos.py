"""Real live ISOs of every generation: the served image equals coreos-installer's."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.expected import check_image
from tests.acceptance.service import Service, os_image, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "coreos-installer"
VERSIONS = sorted(path.name.removesuffix(".iso.xz") for path in FIXTURES.glob("*.iso.xz"))
LIVE = [version for version in VERSIONS if version != "synthetic"]
# What coreos-installer calls "No karg embed areas found; old or corrupted CoreOS ISO image".
WITHOUT_AREAS = [version for version in LIVE if version.endswith(("2020-09", "2023-03.s390x"))]
WITH_AREAS = [version for version in LIVE if version not in WITHOUT_AREAS]

APPENDED = ["rd.neednet=1", 'ip="192.0.2.1::192.0.2.254"', "rd.neednet=1"]
OVERRIDE = {
    "ignition": {"version": "3.2.0"},
    "passwd": {"users": [{"name": "core", "gecos": "Jürgen Große"}]},
}


@pytest.fixture(scope="module")
def isos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack all ISOs; one of them is not a live ISO."""
    directory: Path = tmp_path_factory.mktemp("isos")
    for version in VERSIONS:
        packed = (FIXTURES / f"{version}.iso.xz").read_bytes()
        (directory / f"{version}.iso").write_bytes(lzma.decompress(packed))
    return directory


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, isos: Path) -> Iterator[Service]:
    """Serve all of them."""
    offered = [os_image(isos / f"{version}.iso", version, _architecture(version)) for version in VERSIONS]
    with run_service(tmp_path_factory.mktemp("service"), offered) as running:
        yield running


@pytest.mark.parametrize("version", WITH_AREAS)
def test_real_live_iso_gets_config_and_arguments_and_no_other_change(
    version: str, service: Service, isos: Path, tmp_path: Path
) -> None:
    infra_env_id = _register(service, version, APPENDED)
    image = _download(service, infra_env_id, version, tmp_path)
    base = isos / f"{version}.iso"
    default = run_client("coreos-installer", "iso", "kargs", "show", "--default", base).decode().strip()
    arguments = " ".join([default, *APPENDED])
    check_image(image, base, service.ignition_config(infra_env_id), arguments)


@pytest.mark.parametrize("version", LIVE)
def test_real_live_iso_without_arguments_gets_only_the_config(
    version: str, service: Service, isos: Path, tmp_path: Path
) -> None:
    infra_env_id = _register(service, version, [])
    image = _download(service, infra_env_id, version, tmp_path)
    config = service.ignition_config(infra_env_id)
    assert json.loads(config) == OVERRIDE
    check_image(image, isos / f"{version}.iso", config, None)


@pytest.mark.parametrize("version", WITHOUT_AREAS)
def test_kernel_arguments_without_embed_area_are_422(version: str, service: Service) -> None:
    infra_env_id = _register(service, version, APPENDED)
    answer = service.get_image(_path(infra_env_id, version))
    assert answer.status == 422
    assert answer.json()["code"] == "kernel-arguments-too-large"


@pytest.mark.skipif(not VERSIONS, reason="the fixtures of coreos-installer are not beside the checkout")
def test_file_that_is_no_live_iso_is_refused_by_name(service: Service) -> None:
    answer = service.get(_path(_register(service, "synthetic", []), "synthetic"))
    assert answer.status == 503
    assert answer.json()["code"] == "base-image-refused"
    assert b"synthetic" in service.output


def _register(service: Service, version: str, arguments: list[str]) -> str:
    return service.register(version, OVERRIDE, arguments, _architecture(version))


def _download(service: Service, infra_env_id: str, version: str, directory: Path) -> Path:
    image = directory / "image.iso"
    image.write_bytes(service.get_image(_path(infra_env_id, version)).body)
    return image


def _path(infra_env_id: str, version: str) -> str:
    return f"/byid/{infra_env_id}/{version}/{_architecture(version)}/full.iso"


def _architecture(version: str) -> str:
    return "s390x" if version.endswith(".s390x") else "x86_64"

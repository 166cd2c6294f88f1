"""The wheel of the imaging toolkit works alone, in an environment without Twisted."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from configparser import ConfigParser
from typing import TYPE_CHECKING, Any

import pytest

from image_service import __version__
from tests.packaging.conftest import CHECKOUT, bare_environment, install_wheel
from tests.s3_server import BUCKET, running_s3_server
from tests.toolkit.coreos_disk import build_disk

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.package


@pytest.fixture(scope="module")
def environment(toolkit_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel with its requirements into an empty environment; return its directory of programs."""
    return install_wheel(toolkit_wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_disk(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def config(disk: Path) -> Path:
    path = disk.with_name("config.ign")
    path.write_text('{"ignition": {"version": "3.4.0"}}')
    return path


def run(program: Path, *arguments: str | Path, **variables: str) -> tuple[int, str]:
    """Run a program outside the checkout, whose directory `twisted` Python would import."""
    done = subprocess.run(
        [program, *arguments],
        check=False,
        cwd=program.parent,
        env={**bare_environment(), **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


def report_of(programs: Path, *arguments: str | Path, **variables: str) -> dict[str, Any]:
    """Run a verb and return its report; fail the test if the verb fails."""
    status, output = run(programs / "image-toolkit", *arguments, "--json", **variables)
    assert status == 0, output
    report: dict[str, Any] = json.loads(output)
    return report


def requirements(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()[:1] not in {"", "#"}}


def test_wheel_has_the_modules_of_the_toolkit_and_no_other_product(toolkit_wheel: Path) -> None:
    toolkit = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "image_service/toolkit").rglob("*.py")}
    with zipfile.ZipFile(toolkit_wheel) as archive:
        found = {name for name in archive.namelist() if name.endswith(".py")}
    assert toolkit <= found
    assert {name.split("/")[1] for name in found} == {"__init__.py", "common", "core", "toolkit"}


def test_requirements_are_those_of_the_service_and_its_extra() -> None:
    toolkit, service = ConfigParser(), ConfigParser()
    toolkit.read(CHECKOUT / ".ci/toolkit/setup.cfg")
    service.read(CHECKOUT / "setup.cfg")
    required = requirements(toolkit["options"]["install_requires"])
    of_extra = requirements(service["options.extras_require"]["toolkit"])
    assert of_extra <= required
    assert required - of_extra <= requirements(service["options"]["install_requires"])


def test_there_is_no_twisted(environment: Path) -> None:
    status, _ = run(environment / "python", "-c", "import twisted")
    assert status == 1
    status, output = run(environment / "image-toolkit", "--version")
    assert (status, output) == (0, f"image-toolkit {__version__}\n")


def test_requirements_of_every_module_are_installed(environment: Path, toolkit_wheel: Path) -> None:
    with zipfile.ZipFile(toolkit_wheel) as archive:
        modules = [name.removesuffix(".py") for name in archive.namelist() if name.endswith(".py")]
    imported = ", ".join(
        name.removesuffix("/__init__").replace("/", ".") for name in modules if "__main__" not in name
    )
    assert run(environment / "python", "-c", f"import {imported}") == (0, "")


def test_list_describes_every_verb(environment: Path) -> None:
    verbs = {verb["name"]: verb for verb in report_of(environment, "list")["verbs"]}
    assert verbs.keys() == {"inspect", "validate", "convert", "customize", "fetch", "publish"}
    assert all(verb["available"] for verb in verbs.values())


def test_inspect_and_validate(environment: Path, disk: Path) -> None:
    assert report_of(environment, "inspect", disk)["safe"] is True
    status, output = run(environment / "image-toolkit", "validate", disk, "--for", "baremetal", "--json")
    verdicts = {check["name"]: check["verdict"] for check in json.loads(output)["checks"]}
    assert status in {0, 6}
    assert verdicts["image-safe"] == "ok"


@pytest.mark.soak
def test_customize_and_convert(environment: Path, disk: Path, config: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.ova"
    customized = tmp_path / "customized.raw"
    report_of(environment, "customize", disk, customized, "--ignition", config)
    report = report_of(environment, "convert", customized, made, "--format", "ova")
    assert report["output"]["sha256"] == hashlib.sha256(made.read_bytes()).hexdigest()
    workflow = ("run", "customize/convert", disk, tmp_path / "again.ova", "--ignition", config)
    report_of(environment, *workflow, "--format", "ova", "--ova-name", "made")
    assert (tmp_path / "again.ova").read_bytes() == made.read_bytes()


@pytest.mark.soak
def test_publish_and_fetch(environment: Path, disk: Path, tmp_path: Path) -> None:
    manifest, fetched = tmp_path / "manifest.xml", tmp_path / "fetched.raw"
    with running_s3_server(tmp_path / "s3") as server:
        url = f"s3://{BUCKET}/test"
        report_of(environment, "publish", disk, url, "--manifest-file", manifest, **server.environment)
        allowed = f"http://127.0.0.1:{server.port}"
        report_of(environment, "fetch", manifest, fetched, "--allow-host", allowed)
    assert fetched.read_bytes() == disk.read_bytes()


def test_completion_is_printed(environment: Path) -> None:
    status, output = run(environment / "image-toolkit", "completion", "bash")
    assert status == 0
    assert "customize" in output

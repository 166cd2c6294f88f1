"""The wheel contains the service with its plugin and data, nothing else, and works when it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from image_service import __version__
from tests.packaging.conftest import CHECKOUT, bare_environment, install_wheel

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.package

VERSION = f"image-service {__version__}\n"
PLUGIN = "twisted/plugins/image_service_plugin.py"
EXAMPLES = [path for path in (CHECKOUT / "conf").iterdir() if path.is_file()]
DOCUMENTS = list((CHECKOUT / "docs").glob("*.md"))
STATUS_PAGE = list((CHECKOUT / "image_service/server/admin/static").iterdir())


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_module(contents: set[str]) -> None:
    modules = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "image_service").rglob("*.py")}
    assert {name for name in contents if name.endswith(".py")} == modules | {PLUGIN}


def test_wheel_holds_the_files_that_are_no_modules(contents: set[str]) -> None:
    data = {name for name in contents if not name.endswith(".py")}
    assert {name for name in data if "/share/man/man1/" not in name} == {
        "image_service/py.typed",
        "image_service/server/standalone/sample.iso.xz",
        "image_service/server/standalone/sample-disk.raw.xz",
        *(
            f"image_service/server/standalone/translation/{name}"
            for name in ("initrd.service", "static-network.sh", "system.service")
        ),
        *(f"image_service/examples/{path.name}" for path in EXAMPLES),
        *(f"image_service/documents/{path.name}" for path in DOCUMENTS),
        *(f"image_service/server/admin/static/{path.name}" for path in STATUS_PAGE),
    }


def test_wheel_installs_the_manual_pages(installed: Path) -> None:
    # Packages that it requires install pages, too.
    installed_pages = (installed.parent / "share" / "man" / "man1").glob("image-*")
    assert {page.name for page in installed_pages} == {page.name for page in (CHECKOUT / "man").iterdir()}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel with its requirements into an empty environment; return its directory of programs."""
    return install_wheel(wheel, tmp_path_factory.mktemp("installed"))


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, check=False, cwd=cwd, env=bare_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_twistd_finds_the_plugin(installed: Path, tmp_path: Path) -> None:
    assert "\n    image-service " in run(installed / "twistd", "--help", cwd=tmp_path)
    assert "--standalone" in run(installed / "twistd", "image-service", "--help", cwd=tmp_path)


def test_console_script_starts(installed: Path, tmp_path: Path) -> None:
    assert "serve" in run(installed / "image-service", "--help", cwd=tmp_path)
    assert "customize" in run(installed / "image-service", "completion", "bash", cwd=tmp_path)
    assert run(installed / "python", "-m", "image_service", "--version", cwd=tmp_path) == VERSION


def test_installed_program_writes_the_examples(installed: Path, tmp_path: Path) -> None:
    run(installed / "image-service", "examples", "written", cwd=tmp_path)
    written = {path.name: path.read_bytes() for path in (tmp_path / "written").iterdir()}
    assert written == {path.name: path.read_bytes() for path in EXAMPLES}


def test_requirements_are_declared(installed: Path, contents: set[str], tmp_path: Path) -> None:
    """The modules of the jobs role, of Redfish and of tokens need their extras; no other does."""
    modules = [name.removesuffix(".py").replace("/", ".") for name in contents if name.endswith(".py")]
    imported = ", ".join(
        name.removesuffix(".__init__")
        for name in modules
        if not name.endswith("__main__") and not re.search(r"\.jobs|\.redfish|\.pkcs11", name)
    )
    run(installed / "python", "-c", f"import {imported}", cwd=tmp_path)


def test_jobs_role_without_its_extra_names_it(installed: Path, tmp_path: Path) -> None:
    environment = {**bare_environment(), "DATA_DIR": str(tmp_path)}
    command = (installed / "image-service", "jobs")
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == os.EX_CONFIG
    assert "needs temporalio, jwt, jsonschema; install the package image-service-jobs" in done.stderr


@pytest.mark.soak
def test_requirements_of_the_jobs_role_are_declared(wheel: Path, contents: set[str], tmp_path: Path) -> None:
    programs = install_wheel(wheel, tmp_path / "environment", "[jobs]")
    modules = [name.removesuffix(".py").replace("/", ".") for name in contents if name.endswith(".py")]
    imported = ", ".join(name.removesuffix(".__init__") for name in modules if ".jobs" in name)
    run(programs / "python", "-c", f"import {imported}", cwd=tmp_path)
    assert "temporal version" in run(programs / "temporal", "--version", cwd=tmp_path)

"""Packages for Debian and RPM: what is in them, and that they install, upgrade and remove the service."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from image_service import __version__
from tests.acceptance.clients import missing, needs_client, run_client
from tests.jobs.running_role import DISTRIBUTION, wait_until
from tests.packaging.conftest import CHECKOUT
from tests.packaging.machine import running_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.packaging.containers import Podman
    from tests.packaging.machine import Machine

SOURCES = CHECKOUT / ".ci" / "packages"
NAMES = ("image-service", "image-service-jobs", "image-service-toolkit")
SCRIPTS = sorted(path for kind in ("deb", "rpm") for path in (SOURCES / kind).glob("p*"))
BUILT_AT = "1700000000"
STATE = "/var/lib/private/image-service"
CONFIGURATION = "/etc/image-service/image-service.env"
HEALTH = ("image-service", "health")
SOCKET = "unix:/run/image-service-jobs/jobs.sock"
SUITES = {"debian12": "bookworm", "debian13": "trixie"}
RPMS = {"el9": ("3.12", "el9"), "fedora": ("3.13", "fc")}
"""The Python of each system with RPMs, and what the releases of its packages end with."""
REQUIRED_BY_RPMS = {
    "image-service": {"systemd", "shadow-utils"},
    "image-service-jobs": {"systemd", "shadow-utils", "bubblewrap", "e2fsprogs", "qemu-img"},
    "image-service-toolkit": set[str](),
}
RPM = "rpm --force-debian --nodeps"
WITH_RPM = (
    "apt-get update && apt-get install --yes --no-install-recommends rpm && rm -r /var/lib/apt/lists"
    " && cp --recursive /srv/python/. /usr && ldconfig"
    " && echo 'disable *' >/usr/lib/systemd/system-preset/99-default-disable.preset"
)


def build(wheels: Path, system: str, directory: Path, checkout: Path = CHECKOUT, **variables: str) -> Path:
    """Build the packages of a system from wheels of a checkout; return the directory with them."""
    for program in ("nfpm", "uv"):
        needs_client(program)
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, directory)
    places = (f"{sys.exec_prefix}/bin", os.environ["PATH"], str(Path.home() / "go/bin"))
    environment = {**os.environ, "PATH": ":".join(places), "SOURCE_DATE_EPOCH": BUILT_AT, **variables}
    command = [str(checkout / ".ci/packages/build"), str(directory), system]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory / system


@pytest.fixture(scope="module")
def wheels(wheel: Path, toolkit_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with both wheels."""
    directory = tmp_path_factory.mktemp("wheels")
    for each in (wheel, toolkit_wheel):
        shutil.copy(each, directory)
    return directory


@pytest.fixture(scope="module", params=SUITES)
def debian(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def debs(wheels: Path, debian: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(wheels, debian, tmp_path_factory.mktemp("debs"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_shell_accepts_the_scripts(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)


@pytest.mark.parametrize(("kind", "argument"), [("deb", "upgrade"), ("rpm", "0")])
def test_removal_includes_what_programs_wrote_among_the_modules(
    kind: str, argument: str, tmp_path: Path
) -> None:
    """Python, and twistd as root."""
    modules = tmp_path / "twisted"
    for name in ("__pycache__/a.pyc", "plugins/__pycache__/b.pyc", "plugins/dropin.cache"):
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).touch()
    script = (SOURCES / kind / "prerm").read_text().replace("@COMPILED@", str(modules))
    subprocess.run(["sh", "-c", re.sub("@[A-Z]+@", "", script), "prerm", argument], check=True)
    assert [path for path in modules.rglob("*") if path.is_file()] == []


def test_packages_are_for_pythons_that_are_promised() -> None:
    (line,) = re.findall(r"^declare -A pythons=\((.*)\)$", (SOURCES / "build").read_text(), re.MULTILINE)
    promised = re.findall(r"Python :: (3\.\d+)$", (CHECKOUT / "setup.cfg").read_text(), re.MULTILINE)
    assert set(re.findall(r"=(3\.\d+)", line)) <= set(promised)


@pytest.mark.parametrize("name", NAMES)
def test_upgrade_never_replaces_edited_configuration(name: str) -> None:
    described = yaml.safe_load((SOURCES / f"{name}.yaml").read_text())
    files = [each for each in described["contents"] if each["dst"].startswith("/etc")]
    assert all(each["type"] == "config|noreplace" and each["file_info"]["mode"] == 0o640 for each in files)
    assert {Path(each["dst"]).name for each in files} <= {path.name for path in SOURCES.glob("*.env")}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_packages_are_equal_wherever_they_are_built(
    debs: Path, debian: str, wheels: Path, tmp_path: Path
) -> None:
    again = build(wheels, debian, tmp_path, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="1")
    expected = {path.name: path.read_bytes() for path in debs.iterdir()}
    assert {re.split("_", name)[0] for name in expected} == set(NAMES)
    assert {path.name for path in again.iterdir()} == expected.keys()
    assert [path.name for path in again.iterdir() if path.read_bytes() != expected[path.name]] == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_lintian_finds_nothing(debs: Path) -> None:
    said = run_client("lintian", "--allow-root", *sorted(debs.iterdir()), timeout_seconds=3000)
    assert said.decode() == ""


@pytest.fixture(scope="module")
def machine(
    podman: Podman, debs: Path, debian: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """Run a Debian with the packages in /srv/now, and those of a later revision in /srv/later."""
    if os.geteuid() != 0:
        missing("root, without which systemd cannot be PID 1 of a container")
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(debs, context / "files" / "now")
    later = build(wheels, debian, tmp_path_factory.mktemp("later"), REVISION="2")
    shutil.copytree(later, context / "files" / "later")
    name, setup = "image-service-packages-test", "rm -r /var/lib/apt/lists"
    with running_machine(podman, name, context, setup, SUITES[debian]) as found:
        yield found


@pytest.fixture
def clean(machine: Machine) -> Iterator[Machine]:
    """Return the machine, without the packages; purge those that the test installs."""
    yield machine
    machine.run("dpkg", "--purge", *NAMES)
    machine.run("rm", "--recursive", "--force", "/etc/image-service")


def install(machine: Machine, *names: str, of: str = "now") -> None:
    files = " ".join(f"/srv/{of}/{name}_*.deb" for name in names)
    machine.run("sh", "-c", f"DEBIAN_FRONTEND=noninteractive apt-get --yes install {files}")


def wait_until_healthy(machine: Machine) -> None:
    wait_until(lambda: machine.status(*HEALTH) == 0, lambda: machine.explain("image-service"))


def check_later_version(machine: Machine, debian: str) -> None:
    installed = machine.run("dpkg-query", "--show", "--showformat=${Version}", "image-service")
    assert installed == f"{__version__}-2~{debian.replace('debian', 'deb')}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_installed_service_runs_and_health_finds_it(clean: Machine) -> None:
    install(clean, "image-service")
    wait_until_healthy(clean)
    assert clean.show("image-service", "ActiveState", "UnitFileState") == ["active", "enabled"]
    assert clean.run("stat", "--format=%U", STATE) == "image-service"
    assert clean.run("image-service", "--version") == f"image-service {__version__}"
    assert clean.run("stat", "--format=%a", CONFIGURATION) == "640"
    assert clean.run(
        "zgrep", "--count", "TH IMAGE-SERVICE-SERVE", "/usr/share/man/man1/image-service-serve.1.gz"
    )
    assert clean.status("dpkg", "--verify", "image-service") == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_upgrade_restarts_the_service_and_keeps_configuration_and_data(clean: Machine, debian: str) -> None:
    install(clean, "image-service")
    clean.run("sh", "-c", f"echo LOG_FORMAT=json >>{CONFIGURATION}")
    clean.write(f"{STATE}/kept", "data")
    (before,) = clean.show("image-service", "MainPID")
    install(clean, "image-service", of="later")
    check_later_version(clean, debian)
    wait_until_healthy(clean)
    assert clean.show("image-service", "MainPID") != [before]
    assert clean.run("tail", "--lines=1", CONFIGURATION) == "LOG_FORMAT=json"
    assert clean.run("cat", f"{STATE}/kept") == "data"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_removal_leaves_data_and_configuration_which_purge_removes(clean: Machine) -> None:
    install(clean, "image-service")
    clean.write("/etc/image-service/tls.key", "of the operator")
    clean.write(f"{STATE}/kept", "data")
    clean.run("apt-get", "--yes", "remove", "image-service")
    assert clean.show("image-service", "ActiveState") == ["inactive"]
    assert clean.run("cat", f"{STATE}/kept") == "data"
    assert clean.run("ls", "/etc/image-service").split() == ["image-service.env", "tls.key"]
    assert clean.status("test", "-e", "/usr/lib/image-service") != 0
    clean.run("apt-get", "--yes", "purge", "image-service")
    assert clean.status("test", "-e", STATE) != 0
    assert clean.run("ls", "/etc/image-service").split() == ["tls.key"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_jobs_role_composes_and_its_removal_leaves_the_service(clean: Machine) -> None:
    install(clean, *NAMES)
    wanted = ("--distribution", DISTRIBUTION, "--type", "guest-image", "--output", "/srv/disk.qcow2")
    clean.wait_for("image-service-jobs", ActiveState="active")
    clean.run("timeout", "300", "image-service", "compose", "start", "--server", SOCKET, *wanted)
    assert "image-toolkit" in clean.run("image-toolkit", "--version")
    clean.run("image-toolkit", "inspect", "/srv/disk.qcow2")
    assert clean.show("image-service-worker", "ActiveState", "UnitFileState") == ["inactive", "disabled"]
    clean.run("apt-get", "--yes", "remove", "image-service-jobs")
    wait_until_healthy(clean)


@pytest.fixture
def debs_before(debian: str, tmp_path: Path) -> Path:
    """Build the packages of the release before this one; skip the test if there is none."""
    git = (needs_client("git"), "-C", str(CHECKOUT))
    tag = subprocess.run(
        [*git, "describe", "--tags", "--match=v*", "--abbrev=0", "HEAD^"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if not tag:
        pytest.skip("no release precedes this commit: no earlier commit has a tag v*")
    checkout, wheels, made = (tmp_path / name for name in ("checkout", "wheels", "made"))
    for directory in (checkout, wheels, made):
        directory.mkdir()
    archive = subprocess.run([*git, "archive", tag], check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", "--directory", checkout], input=archive, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": BUILT_AT}
    environment["PATH"] = f"{sys.exec_prefix}/bin:{environment['PATH']}"
    for program, *arguments in ((".ci/distributions", checkout, wheels), (".ci/toolkit/build", wheels)):
        subprocess.run([checkout / program, *arguments], check=True, env=environment, capture_output=True)
    return build(wheels, debian, made, checkout)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_upgrade_from_the_release_before_keeps_data_and_serves(
    clean: Machine, debian: str, debs_before: Path
) -> None:
    clean.run("mkdir", "--parents", "/srv/before")
    for deb in debs_before.glob("image-service_*.deb"):
        with deb.open("rb") as file:
            copying = clean.command("sh", "-c", f"cat >/srv/before/{deb.name}")
            subprocess.run(copying, stdin=file, check=True)
    install(clean, "image-service", of="before")
    wait_until_healthy(clean)
    clean.write(f"{STATE}/kept", "data")
    install(clean, "image-service", of="later")
    wait_until_healthy(clean)
    check_later_version(clean, debian)
    assert clean.run("cat", f"{STATE}/kept") == "data"


@pytest.fixture(scope="module", params=RPMS)
def rpm_system(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def rpms(wheels: Path, rpm_system: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(wheels, rpm_system, tmp_path_factory.mktemp("rpms"))


@pytest.fixture
def rpm_machine(
    podman: Podman, rpms: Path, rpm_system: str, wheels: Path, tmp_path: Path
) -> Iterator[Machine]:
    """Run a Debian with rpm, and with the system's Python and presets; packages as those of Debian."""
    if os.geteuid() != 0:
        missing("root, without which systemd cannot be PID 1 of a container")
    files, later = tmp_path / "files", tmp_path / "later"
    later.mkdir()
    copy_python(RPMS[rpm_system][0], files / "python")
    shutil.copytree(rpms, files / "now")
    shutil.copytree(build(wheels, rpm_system, later, REVISION="2"), files / "later")
    with running_machine(podman, "image-service-rpms-test", tmp_path, WITH_RPM) as found:
        yield found


def copy_python(version: str, directory: Path) -> None:
    """Copy an interpreter of this machine, without its tests; skip the test if there is none."""
    listed = subprocess.run([CHECKOUT / ".ci/interpreters"], check=True, capture_output=True, text=True)
    interpreters = dict(line.split() for line in listed.stdout.splitlines())
    if version not in interpreters:
        pytest.skip(f"Python {version} is not here: .ci/interpreters")
    command = (interpreters[version], "-c", "import sys; print(sys.base_prefix)")
    prefix = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    for name in ("bin", "lib"):
        (directory / name).mkdir(parents=True)
    shutil.copy(prefix / "bin" / f"python{version}", directory / "bin")
    for library in (prefix / "lib").glob(f"libpython{version}.so.*"):
        shutil.copy(library, directory / "lib")
    unused = shutil.ignore_patterns("test", "__pycache__", "site-packages")
    modules = f"lib/python{version}"
    shutil.copytree(prefix / modules, directory / modules, ignore=unused)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rpms_run_the_service_and_leave_data_and_configuration(rpm_machine: Machine, rpm_system: str) -> None:
    """Without what they depend on, for which Debian's packages stand."""
    python, suffix = RPMS[rpm_system]
    release = f"{__version__}-2.{suffix}"
    rpm_machine.run("sh", "-c", f"{RPM} --install /srv/now/*.rpm")
    assert rpm_machine.show("image-service", "ActiveState", "UnitFileState") == ["inactive", "disabled"]
    rpm_machine.run("systemctl", "enable", "--now", "image-service", "image-service-jobs")
    wait_until_healthy(rpm_machine)
    rpm_machine.wait_for("image-service-jobs", ActiveState="active")
    rpm_machine.run("image-toolkit", "--version")
    rpm_machine.run("sh", "-c", f"echo LOG_FORMAT=json >>{CONFIGURATION}")
    rpm_machine.write(f"{STATE}/kept", "data")
    (before,) = rpm_machine.show("image-service", "MainPID")
    rpm_machine.run("sh", "-c", f"{RPM} --upgrade /srv/later/*.rpm")
    wait_until_healthy(rpm_machine)
    assert rpm_machine.show("image-service", "MainPID") != [before]
    listed = rpm_machine.run("sh", "-c", "rpm --query --all").split()
    assert sorted(listed) == [f"{name}-{release}.{platform.machine()}" for name in NAMES]
    for name, required in REQUIRED_BY_RPMS.items():
        found = set(rpm_machine.run("rpm", "--query", "--requires", name).splitlines())
        assert required | {f"python{python}"} <= found
    jobs = rpm_machine.run("rpm", "--query", "--requires", "image-service-jobs")
    assert f"image-service = {release}" in jobs.splitlines()
    rpm_machine.run("sh", "-c", f"{RPM} --erase {' '.join(NAMES)}")
    assert rpm_machine.show("image-service", "ActiveState") == ["inactive"]
    assert rpm_machine.status("test", "-e", "/usr/lib/image-service") != 0
    assert rpm_machine.run("tail", "--lines=1", f"{CONFIGURATION}.rpmsave") == "LOG_FORMAT=json"
    assert rpm_machine.run("cat", f"{STATE}/kept") == "data"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rpmlint_finds_no_error(rpms: Path) -> None:
    options = ("--config", SOURCES / "rpmlint.toml")
    said = run_client("rpmlint", *options, *sorted(rpms.iterdir()), timeout_seconds=3000).decode()
    assert " 0 errors" in said, said

"""The units, run by systemd as PID 1 of a container: ``make systemd-test``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.clients import missing
from tests.acceptance.service import os_image
from tests.core.formats.filesystems.iso_builder import write_sparse_live_iso
from tests.jobs.running_role import DISTRIBUTION, wait_until
from tests.packaging.machine import Machine, running_machine
from tests.server.catalog import full_isos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.packaging.containers import Podman

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(1800)]

SERVE, JOBS, WORKER = "image-service", "image-service-jobs", "image-service-worker"
PYTHON = "/opt/image-service/bin/python"
PROGRAM = "/opt/image-service/bin/image-service"
# As docs/package.md says.
INSTALL = (
    "python3 -m venv /opt/image-service"
    ' && /opt/image-service/bin/pip install --quiet --no-cache-dir "$(ls /srv/*.whl)[jobs]"'
    f" && {PROGRAM} examples /srv/conf"
)
STANDALONE = f"ExecStart=\nExecStart={PROGRAM} serve --standalone\n"
STATE = "/var/lib/private/image-service"
SOCKET = "unix:/run/image-service-jobs/jobs.sock"
WORKER_SETTINGS = "JOBS_SERVER=http://127.0.0.1:8091\nWORKER_OPTIONS={options}\n"

# It reads the image slowly, says when it has begun, and at the end whether all bytes came, and how many.
DOWNLOAD = """
import sys, time, urllib.request
image = urllib.request.urlopen(sys.argv[1])
got = len(image.read(65536))
print("begun", flush=True)
while block := image.read(1 << 20):
    got += len(block)
    time.sleep(0.02)
print(got == int(image.headers["Content-Length"]), got, flush=True)
"""
READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"


@pytest.fixture(scope="module")
def machine(podman: Podman, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if os.geteuid() != 0:
        missing("root, without which systemd cannot be PID 1 of a container")
    context = tmp_path_factory.mktemp("context")
    (context / "files").mkdir()
    shutil.copy(wheel, context / "files")
    with running_machine(podman, "image-service-systemd-test", context, INSTALL) as found:
        units = f"{SERVE}.service {JOBS}.service {WORKER}.service"
        found.run("sh", "-c", f"cd /srv/conf && cp {units} /etc/systemd/system")
        yield found


@pytest.fixture
def configure(machine: Machine) -> Iterator[Callable[..., None]]:
    """Return a function that adds lines to a unit, and writes its file of variables; both are of one test."""
    units = []

    def adding(unit: str, lines: str = "", variables: str = "") -> None:
        units.append(unit)
        name = unit.removeprefix(f"{SERVE}-")
        machine.write(f"/etc/image-service/{name}.env", variables)
        machine.write(f"/etc/systemd/system/{unit}.service.d/test.conf", f"[Service]\n{lines}")
        machine.run("systemctl", "daemon-reload")

    yield adding
    for unit in dict.fromkeys(reversed(units)):
        machine.run("systemctl", "stop", unit)
        machine.run("rm", "-r", f"/etc/systemd/system/{unit}.service.d")
        machine.run("systemctl", "daemon-reload")
        machine.status("systemctl", "reset-failed", unit)


@pytest.fixture
def serve(machine: Machine, configure: Callable[..., None]) -> None:
    """Start the unit of the byte server with the sample."""
    configure(SERVE, STANDALONE)
    machine.run("systemctl", "start", SERVE)


@pytest.fixture
def jobs(machine: Machine, configure: Callable[..., None]) -> None:
    """Start the unit of the jobs role, with the samples."""
    configure(JOBS)
    machine.run("systemctl", "start", JOBS)


def url_to_try(machine: Machine) -> str:
    """Return the URL of the image that the service offers to try."""
    offered = r"http://\S+/full\.iso"
    wait_until(lambda: bool(re.search(offered, machine.messages(SERVE))), lambda: machine.messages(SERVE))
    return str(re.findall(offered, machine.messages(SERVE))[-1])


def assert_serves(machine: Machine) -> None:
    assert machine.run(PYTHON, "-c", GET, url_to_try(machine)) == "200"


@pytest.mark.parametrize("unit", [SERVE, JOBS, WORKER])
def test_systemd_of_the_machine_accepts_the_unit(machine: Machine, unit: str) -> None:
    assert machine.run("systemd-analyze", "verify", f"{unit}.service") == ""


@pytest.mark.usefixtures("serve")
def test_unit_is_started_once_it_serves(machine: Machine) -> None:
    assert_serves(machine)
    state = partial(machine.show, SERVE, "ActiveState", "StatusText")
    expected = ["active", "1 of 1 base image is ready"]
    # The service sends its status text to systemd once a second.
    wait_until(lambda: state() == expected, lambda: str(state()))
    mode, owner = machine.run("stat", "--format=%a %u", STATE).split()
    assert mode == "750"
    assert int(owner) > 60000  # a user that exists while the unit runs
    readable = machine.run("find", STATE, "-type", "f", "-perm", "/007").splitlines()
    assert readable == [f"{STATE}/standalone/ca.pem"]


@pytest.mark.usefixtures("serve")
def test_reload_reads_files_again(machine: Machine) -> None:
    machine.run("systemctl", "reload", SERVE)
    wait_until(
        lambda: "reloaded: nothing changed" in machine.messages(SERVE), lambda: machine.messages(SERVE)
    )
    assert machine.show(SERVE, "ActiveState") == ["active"]


def restarts(machine: Machine, unit: str, signal: str) -> None:
    """Send a signal to the main process of a unit; wait until systemd has started it again."""
    (before,) = machine.show(unit, "MainPID")
    machine.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", unit)
    machine.wait_for(unit, NRestarts="1", ActiveState="active", SubState="running")
    assert machine.show(unit, "MainPID") != [before]


@pytest.mark.usefixtures("serve")
def test_killed_service_is_started_again(machine: Machine) -> None:
    restarts(machine, SERVE, "KILL")
    assert_serves(machine)


@pytest.mark.usefixtures("serve")
def test_hung_service_is_started_again(machine: Machine) -> None:
    assert machine.show(SERVE, "WatchdogUSec") == ["30s"]
    restarts(machine, SERVE, "STOP")
    assert "Watchdog timeout (limit 30s)!" in machine.messages(SERVE)
    assert_serves(machine)


def test_hung_jobs_role_is_started_again_with_an_engine(
    machine: Machine, configure: Callable[..., None]
) -> None:
    configure(JOBS, "WatchdogSec=5\n")
    machine.run("systemctl", "start", JOBS)
    restarts(machine, JOBS, "STOP")
    assert "Watchdog timeout (limit 5s)!" in machine.messages(JOBS)
    compose(machine)


@attrs.frozen
class Wrong:
    """A configuration that a unit does not start with.

    Args:
        unit: with it.
        variables: of its file.
        status: with which it ends.
        fault: in the journal, as an error.
        lines: of the unit.
    """

    unit: str
    variables: str
    status: int
    fault: str
    lines: str = ""


WRONG = {
    "serve": Wrong(SERVE, "LISTEN_PORT=abc\n", 78, "LISTEN_PORT='abc': must be", STANDALONE),
    "port": Wrong(SERVE, "LISTEN_PORT=80\n", 78, "CAP_NET_BIND_SERVICE", STANDALONE),
    "jobs": Wrong(JOBS, "JOBS_WORKER_SLOTS=many\n", 78, "JOBS_WORKER_SLOTS='many': must be"),
    "worker": Wrong(WORKER, WORKER_SETTINGS.format(options="--types=upload"), 78, "--types upload needs"),
    "options": Wrong(WORKER, WORKER_SETTINGS.format(options="--slots=many"), 2, "--slots"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_configuration_is_an_error_and_is_not_started_again(
    machine: Machine, configure: Callable[..., None], wrong: Wrong
) -> None:
    machine.write("/etc/image-service/worker.token", "token\n")
    configure(wrong.unit, wrong.lines, wrong.variables)
    machine.status("systemctl", "start", wrong.unit)
    machine.wait_for(wrong.unit, ActiveState="failed", NRestarts="0", ExecMainStatus=str(wrong.status))
    assert wrong.fault in machine.messages(wrong.unit, "--priority=err")


def test_port_below_1024_needs_what_the_unit_says(machine: Machine, configure: Callable[..., None]) -> None:
    names = ("CapabilityBoundingSet", "AmbientCapabilities")
    lines = [f"{name}=CAP_NET_BIND_SERVICE" for name in names]
    configure(SERVE, "\n".join([STANDALONE, *lines, "PrivateUsers=no", ""]), "LISTEN_PORT=80\n")
    machine.run("systemctl", "start", SERVE)
    url = re.sub(r"//[^/]+", "//127.0.0.1:80", url_to_try(machine))
    assert machine.run(PYTHON, "-c", GET, url) == "200"


def serve_image(machine: Machine, configure: Callable[..., None], iso: Path) -> None:
    """Copy a live ISO to the machine, and start the unit of the byte server with it."""
    machine.run("mkdir", "--parents", "/srv/images")
    with iso.open("rb") as file:
        subprocess.run(machine.command("sh", "-c", "cat >/srv/images/live.iso"), stdin=file, check=True)
    entry = os_image(iso, "4.17") | {"url": "file:///srv/images/live.iso"}
    configure(SERVE, STANDALONE, f"OS_IMAGES={json.dumps([entry])}\n")
    machine.run("systemctl", "start", SERVE)


def test_unit_lets_the_service_start_xorriso(
    machine: Machine, configure: Callable[..., None], tmp_path: Path
) -> None:
    iso = tmp_path / "live.iso"
    full_isos.x86_64(iso)  # has no recipe of its minimal ISO
    serve_image(machine, configure, iso)
    wait_until(
        lambda: re.search("base image .* is (ready|degraded)", machine.messages(SERVE)) is not None,
        lambda: machine.explain(SERVE),
    )
    assert "could not be derived" not in machine.messages(SERVE)


def test_stop_finishes_a_download(machine: Machine, configure: Callable[..., None], tmp_path: Path) -> None:
    iso = tmp_path / "large.iso"
    write_sparse_live_iso(iso, 64 * 2**20)
    serve_image(machine, configure, iso)
    url = url_to_try(machine)
    with subprocess.Popen(
        machine.command(PYTHON, "-c", DOWNLOAD, url), stdout=subprocess.PIPE, text=True
    ) as download:
        assert download.stdout is not None
        assert download.stdout.readline() == "begun\n", machine.messages(SERVE)
        machine.run("systemctl", "stop", SERVE)
        complete, received = download.stdout.read().split()
    assert complete == "True"
    assert int(received) > iso.stat().st_size // 2
    assert machine.show(SERVE, "Result", "ExecMainStatus", "ActiveState") == ["success", "0", "inactive"]


def compose(machine: Machine) -> None:
    """Have the jobs role make the sample disk, through the socket that the unit names."""
    wanted = ("--distribution", DISTRIBUTION, "--type", "guest-image", "--output", "/srv/disk.qcow2")
    machine.run("rm", "--force", "/srv/disk.qcow2")
    machine.run("timeout", "300", PROGRAM, "compose", "start", "--server", SOCKET, *wanted)
    assert machine.run("head", "--bytes=3", "/srv/disk.qcow2") == "QFI"


@pytest.mark.usefixtures("jobs")
def test_jobs_role_composes(machine: Machine) -> None:
    compose(machine)
    said = machine.messages(JOBS)
    assert "programs run in bwrap" in said
    assert "without isolation" not in said
    machine.run("systemctl", "stop", JOBS)
    assert machine.show(JOBS, "Result", "ExecMainStatus") == ["success", "0"]


def test_unit_says_that_its_engine_is_dead(machine: Machine, configure: Callable[..., None]) -> None:
    state = "/var/lib/private/image-service-jobs"
    machine.run("rm", "--recursive", "--force", state)
    machine.write(f"{state}/engine/temporal.sqlite", "no database" * 1000)
    configure(JOBS)
    machine.run("systemctl", "start", JOBS)
    wait_until(
        lambda: "the job engine does not answer" in machine.show(JOBS, "StatusText")[0],
        lambda: machine.explain(JOBS, "StatusText"),
    )
    metrics = machine.run("python3", "-c", READ, "http://127.0.0.1:8092/metrics")
    assert re.search(r"^image_builder_engine_up 0\b", metrics, re.MULTILINE)
    machine.run("systemctl", "stop", JOBS)
    machine.run("rm", "--recursive", state)


def test_worker_composes_for_the_jobs_role(machine: Machine, configure: Callable[..., None]) -> None:
    machine.write("/etc/image-service/worker.token", "token\n")
    configure(JOBS, "", "JOBS_WORKER_SLOTS=0\n")
    configure(WORKER, "", WORKER_SETTINGS.format(options="--slots 1"))
    machine.run("systemctl", "start", JOBS, WORKER)
    wait_until(lambda: "takes jobs of" in machine.messages(WORKER), lambda: machine.explain(WORKER))
    compose(machine)
    assert re.search(r"job \S+: done", machine.messages(WORKER))
    assert "programs run in bwrap" in machine.messages(WORKER)


@pytest.mark.usefixtures("serve")
def test_journal_has_the_priorities_of_the_log(machine: Machine) -> None:
    restarted = machine.journal(SERVE)
    priorities = {entry["PRIORITY"] for entry in restarted}
    assert "6" in priorities
    assert all(not str(entry["MESSAGE"]).startswith("<") for entry in restarted)


@pytest.mark.usefixtures("serve")
def test_enabled_unit_is_active_after_a_reboot(machine: Machine) -> None:
    machine.run("systemctl", "enable", SERVE)
    machine.reboot()
    assert machine.show(SERVE, "UnitFileState") == ["enabled"]

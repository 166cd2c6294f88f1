"""``image-service boot`` at the BMC emulator of sushy-tools, which copies the image that is inserted."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import bcrypt
import pytest
import sushy

from tests import forks
from tests.acceptance.service import CHECKOUT, fetch, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.acceptance.service import Certificate, Service

pytestmark = pytest.mark.acceptance

USER, PASSWORD = "admin", "the password of the BMC"
SYSTEMS = {"27946b59-9e44-4fa7-8e91-f3527a1ef094": "Off", "27946b59-9e44-4fa7-8e91-f3527a1ef095": "On"}
FIRST, SECOND = SYSTEMS
VERSION = "44"


@attrs.frozen
class Bmc:
    """The emulator, and the file of its user and password."""

    url: str
    credentials: Path
    ca: Path

    def system(self, identity: str) -> sushy.resources.system.system.System:
        """Return a system as it is now."""
        auth = sushy.auth.BasicAuth(USER, PASSWORD)
        service = sushy.Sushy(self.url, auth=auth, verify=str(self.ca))
        return service.get_system(f"/redfish/v1/Systems/{identity}")

    def medium(self, identity: str) -> str:
        """Return the URL of the medium in the first virtual CD."""
        media = self.system(identity).managers[0].virtual_media.get_members()
        return str(next(device.image for device in media if sushy.VirtualMediaType.CD in device.media_types))


@contextmanager
def emulator(
    directory: Path, certificate: Certificate, name: str, machine: Sequence[str] = ()
) -> Iterator[Bmc]:
    """Run the emulator.

    Args:
        machine: a command that stands for the machines, see `range_reading_bmc`; (): they read nothing.
    """
    port, users = free_port(), directory / f"{name}.htpasswd"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    systems = [
        {"uuid": uuid, "name": uuid[-3:], "power_state": power, "external_notifier": False, "nics": []}
        for uuid, power in SYSTEMS.items()
    ]
    config = directory / f"{name}.py"
    state = directory / name
    state.mkdir()
    config.write_text(
        f"SUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\nSUSHY_EMULATOR_FAKE_SYSTEMS = {systems!r}\n"
        f"SUSHY_EMULATOR_STATE_DIR = {str(state)!r}\nMACHINE_COMMAND = {list(machine)!r}\n"
    )
    program: list[str | Path] = [Path(sys.executable).with_name("sushy-emulator")]
    if machine:
        program = [sys.executable, "-m", "tests.acceptance.range_reading_bmc"]
    tls = ("--ssl-certificate", certificate.chain, "--ssl-key", certificate.key)
    command: list[str | Path] = [
        *program,
        "--fake",
        "--interface",
        "127.0.0.1",
        "--port",
        str(port),
        "--config",
        config,
        *tls,
    ]
    credentials = directory / f"{name}.txt"
    credentials.write_text(f"{USER}:{PASSWORD}\n")
    log = (directory / f"{name}.log").open("wb")
    environment = {**os.environ, "TMPDIR": str(state), "PYTHONPATH": str(CHECKOUT)}
    with log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            url = f"https://127.0.0.1:{port}"
            wait_for(lambda: answers(url, certificate.ca))
            yield Bmc(url, credentials, certificate.ca)
        finally:
            process.terminate()


def answers(url: str, ca: Path) -> bool:
    try:
        return fetch(f"{url}/redfish/v1/", ca=ca).status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def bmc(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[Bmc]:
    with emulator(tmp_path_factory.mktemp("bmc"), certificate, "bmc") as running:
        yield running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("service")
    iso = directory / "live.iso"
    iso.write_bytes(build_live_iso())
    environment = {"ADMIN_LISTEN": f"127.0.0.1:{free_port()}"}
    with run_service(directory, [os_image(iso, VERSION)], environment=environment, probe="/live") as running:
        running.wait_for("serving at (http)")
        yield running


@pytest.fixture(scope="module")
def image(service: Service) -> str:
    identity = service.register(VERSION, {"ignition": {"version": "3.4.0"}})
    return f"{service.url}/byid/{identity}/{VERSION}/x86_64/full.iso"


def boot(bmc: Bmc, *arguments: str | Path, status: int = 0, **environment: str) -> tuple[str, str]:
    """Run the command; return its output and errors, in which no password is."""
    command = [
        sys.executable,
        "-m",
        "image_service.cli",
        "boot",
        *map(str, arguments),
        "--cacert",
        str(bmc.ca),
    ]
    ran = forks.run(command, cwd=CHECKOUT, env={**os.environ, **environment})
    assert PASSWORD not in ran.stdout + ran.stderr
    assert ran.returncode == status, ran.stdout + ran.stderr
    return ran.stdout, ran.stderr


def one(bmc: Bmc, identity: str) -> tuple[str | Path, ...]:
    return ("--redfish", bmc.url, "--system", identity, "--credentials", bmc.credentials)


def test_machine_boots_once_from_the_inserted_image(bmc: Bmc, service: Service, image: str) -> None:
    admin = f"http://{service.wait_for(r'listening on ([0-9.:]+) .HTTP: admin')}"
    output, errors = boot(bmc, image, *one(bmc, FIRST), "--no-doctor", "--yes", "--follow", "--admin", admin)
    name = f"{bmc.url.removeprefix('https://')}/{FIRST}"
    first, second, *stages = output.splitlines()
    assert (errors, first.startswith(f"{name}: "), first.endswith(", power off")) == ("", True, True)
    assert second.startswith(f"{name}: inserted in ")
    assert second.endswith("; restarted to boot from it once")
    assert stages[-1] == f"{name}: 100 % read"
    system = bmc.system(FIRST)
    assert bmc.medium(FIRST) == image
    assert system.boot["target"] == sushy.BootSource.CD
    wait_for(lambda: bmc.system(FIRST).power_state == sushy.PowerState.ON)


def test_medium_is_replaced_on_demand_and_ejected(bmc: Bmc, image: str) -> None:
    arguments = (*one(bmc, SECOND), "--no-doctor", "--no-reset")
    boot(bmc, image, *arguments)
    other = f"{image}?other=1"
    _, errors = boot(bmc, other, *arguments, status=1)
    host = image.split("/")[2]
    assert errors.endswith(f"/{SECOND}: has a medium from {host} inserted; --replace ejects it\n")
    output, _ = boot(bmc, other, *arguments, "--replace")
    assert output.endswith("; boots from it once\n")
    assert bmc.medium(SECOND) == other
    output, _ = boot(bmc, "--eject", *one(bmc, SECOND))
    assert "ejected from " in output
    assert bmc.medium(SECOND) == ""
    output, _ = boot(bmc, "--eject", *one(bmc, SECOND))
    assert output.endswith("no medium is inserted\n")


def test_one_failure_stops_no_other(bmc: Bmc, image: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(f"{USER}:wrong\n")
    bmcs = tmp_path / "rack.txt"
    bmcs.write_text(
        f"# a rack\n{bmc.url} {SECOND}\n\nhttps://127.0.0.1:1\n{bmc.url} {SECOND} {wrong}\n"
        f"{bmc.url} absent\n{bmc.url}\n"
    )
    output, errors = boot(
        bmc,
        image,
        *("--bmcs", bmcs, "--no-doctor", "--yes"),
        status=1,
        REDFISH_USERNAME=USER,
        REDFISH_PASSWORD=PASSWORD,
    )
    host = bmc.url.removeprefix("https://")
    assert f"{host}/{SECOND}: inserted in " in output
    assert "127.0.0.1:1: cannot be reached: Connection refused\n" in errors
    assert f"{host}/{SECOND}: refuses the user {USER} or the password\n" in errors
    assert f"{host}/absent: has no system absent; its systems: {FIRST}, {SECOND}\n" in errors
    assert f"{host}: has 2 systems; name one of them: {FIRST}, {SECOND}\n" in errors
    assert "Traceback" not in errors
    boot(bmc, "--eject", *one(bmc, SECOND))


def test_image_that_the_bmc_cannot_read_is_not_repeated(bmc: Bmc, service: Service) -> None:
    url = f"{service.url}/byid/secret-of-the-link/{VERSION}/x86_64/full.iso"
    _, errors = boot(bmc, url, *one(bmc, SECOND), "--no-doctor", "--no-reset", status=1)
    assert f"/{SECOND}: answers 4" in errors
    assert "secret-of-the-link" not in errors


def test_doctor_is_asked_first(bmc: Bmc, service: Service) -> None:
    url = f"{service.url}/images/absent.iso"
    _, errors = boot(bmc, url, *one(bmc, SECOND), "--yes", status=1)
    assert "✗ " in errors
    assert errors.endswith("--no-doctor inserts it anyway\n")
    assert bmc.medium(SECOND) == ""


def test_certificate_is_verified(bmc: Bmc, image: str) -> None:
    command = [sys.executable, "-m", "image_service.cli", "boot", image, "--no-reset", "--no-doctor"]
    refused = forks.run([*command, *one(bmc, FIRST)], cwd=CHECKOUT)
    assert refused.returncode == 1
    assert refused.stderr.endswith(": cannot be reached: unable to get local issuer certificate\n")
    trusted = forks.run([*command, *one(bmc, FIRST), "--insecure", "--replace"], cwd=CHECKOUT)
    assert (trusted.returncode, trusted.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("http://x/", "--yes"), "name a BMC by --redfish, or a file of them by --bmcs"),
        (("--redfish", "bmc", "--yes"), "give the URL of an image, or --eject without one"),
        (("http://x/", "--eject", "--redfish", "bmc"), "give the URL of an image, or --eject without one"),
        (("http://x/", "--redfish", "bmc"), "there is no terminal to ask before machines are reset"),
        (("http://x/", "--redfish", "https://u:p@bmc", "--yes"), "must have no user and password"),
        (("http://x/", "--redfish", "https://bmc/other", "--yes"), "must be like https://bmc.example.com"),
        (("http://x/", "--redfish", "a", "--redfish", "b", "--system", "1", "--yes"), "--system is for one"),
    ],
)
def test_wrong_usage_is_explained(arguments: tuple[str, ...], text: str) -> None:
    command = [sys.executable, "-m", "image_service.cli", "boot", *arguments]
    ran = forks.run(command, cwd=CHECKOUT)
    assert ran.returncode == 2
    assert text in ran.stderr


def test_missing_and_malformed_credentials_are_told(bmc: Bmc, image: str, tmp_path: Path) -> None:
    malformed = tmp_path / "c.txt"
    malformed.write_text(PASSWORD)
    options = ("--redfish", bmc.url, "--no-reset")
    _, errors = boot(bmc, image, *options, "--credentials", malformed, status=1)
    assert errors == f"image-service: {malformed} must have one line: USER:PASSWORD\n"
    _, errors = boot(bmc, image, *options, status=1)
    assert errors.startswith(
        "image-service: user and password are needed: --credentials, or REDFISH_USERNAME"
    )

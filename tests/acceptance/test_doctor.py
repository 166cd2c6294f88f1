"""``image-service doctor`` against this service and against nginx, with a real bootable ISO."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trustme

from image_service.tools.doctor.examination import ALL_CHECKS
from tests import forks
from tests.acceptance.boot_iso import make_boot_iso
from tests.acceptance.service import CHECKOUT, Certificate, fetch, os_image, run_service
from tests.nginx import running_nginx
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

VERSION = "bootable"
SECRET = "the password of the lab"
CONFIG = {"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "passwordHash": SECRET}]}}
NO_OLD_CIPHERS = {"tls-ciphers": "warn"}  # this service's default
ON_LOOPBACK = {"dns": "warn", "secure-boot": "warn"}
"""Of any server here: GRUB on the test's ISO is not signed."""
OF_THE_MACHINE = {"first-byte", "rate"}
"""They say how busy the machine of the test is."""


@pytest.fixture(scope="module")
def boot_iso(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("iso") / "boot.iso"
    make_boot_iso(path)
    return path


@pytest.fixture(scope="module")
def service(boot_iso: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory, environment = tmp_path_factory.mktemp("service"), {"ADMIN_LISTEN": f"127.0.0.1:{free_port()}"}
    with run_service(
        directory, [os_image(boot_iso, VERSION)], environment=environment, probe="/live"
    ) as running:
        running.wait_for("serving at (http)")
        yield running


@pytest.fixture(scope="module")
def admin_url(service: Service) -> str:
    return f"http://{service.wait_for(r'listening on ([0-9.:]+) .HTTP: admin')}"


def examine(*arguments: str | Path, status: int = 0) -> dict[str, tuple[str, str]]:
    """Run the command; return status and detail of each check."""
    command = [sys.executable, "-m", "image_service.cli", "doctor", "--json", *map(str, arguments)]
    run = forks.run(command, cwd=CHECKOUT)
    assert (run.returncode, run.stderr) == (status, ""), run.stdout
    checks = json.loads(run.stdout)["checks"]
    assert all(set(check) == {"name", "status", "detail"} for check in checks)
    assert sorted(check["name"] for check in checks) == sorted(ALL_CHECKS)
    assert SECRET not in run.stdout
    return {check["name"]: (check["status"], check["detail"]) for check in checks}


def complaints(checks: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {
        name: status
        for name, (status, _) in checks.items()
        if status in {"warn", "fail"} and name not in OF_THE_MACHINE
    }


@pytest.mark.parametrize("kind", ["full", "minimal"])
def test_images_of_this_service_pass(service: Service, kind: str) -> None:
    path = f"/byid/{service.register(VERSION, CONFIG)}/{VERSION}/x86_64/{kind}.iso"
    service.get_image(path, method="HEAD")
    checks = examine("--deep", service.url + path)
    assert complaints(checks) == ON_LOOPBACK
    assert checks["architecture"] == ("ok", "x86_64")
    assert checks["boot-records"] == ("ok", "BIOS from CD, UEFI from CD, BIOS from USB, UEFI from USB")
    assert checks["ignition"][1].startswith("version 3.4.0, ")
    assert checks["coherence"][0] == "ok"
    assert ("in the ISO" in checks["rootfs"][1]) == (kind == "full")


def test_this_service_over_https_offers_no_old_ciphers(
    boot_iso: Path, certificate: Certificate, tmp_path: Path
) -> None:
    with run_service(tmp_path, [os_image(boot_iso, VERSION)], certificate=certificate) as service:
        path = f"/byid/{service.register(VERSION, CONFIG)}/{VERSION}/x86_64/full.iso"
        service.get_image(path, method="HEAD")
        checks = examine("--ca-file", certificate.ca, service.url + path)
        assert complaints(checks) == ON_LOOPBACK | NO_OLD_CIPHERS | {"certificate-key": "warn"}
        untrusted = examine(service.url + path)
        assert untrusted["certificate-chain"][0] == "warn"


def test_short_link_passes(service: Service, admin_url: str) -> None:
    path = f"/byid/{service.register(VERSION, CONFIG)}/{VERSION}/x86_64/minimal.iso"
    service.get_image(path, method="HEAD")
    fields, body = {"Content-Type": "application/json"}, json.dumps({"url": service.url + path}).encode()
    link = fetch(f"{admin_url}/api/v1/links", "POST", headers=fields, body=body)
    assert link.status == 201, link.body
    assert complaints(examine("--profile", "supermicro", link.json()["url"])) == ON_LOOPBACK


def test_requests_that_the_service_has_seen_are_shown(service: Service, admin_url: str) -> None:
    path = f"/byid/{service.register(VERSION, CONFIG)}/{VERSION}/x86_64/full.iso"
    service.get_image(path, {"Range": "bytes=32768-34815", "User-Agent": "iDRAC"})
    status, detail = examine("--admin", admin_url, service.url + path)["requests-seen"]
    assert status == "ok", detail
    assert detail.startswith("127.0.0.1 (iDRAC): ")
    unknown = f"{service.url}/byid/{'1' * 8}-1111-4111-8111-{'1' * 12}/{VERSION}/x86_64/full.iso"
    seen = ("ok", "the service knows of no request for this infra-env")
    assert examine("--admin", admin_url, unknown, status=1)["requests-seen"] == seen


def test_unknown_infra_env_is_named(service: Service) -> None:
    url = f"{service.url}/byid/11111111-1111-4111-8111-111111111111/{VERSION}/x86_64/full.iso"
    checks = examine(url, status=1)
    assert checks["head"][0] == checks["head-and-get"][0] == "fail"
    assert "404" in checks["head-and-get"][1]


def test_plain_iso_of_nginx_passes(boot_iso: Path, tmp_path: Path) -> None:
    with running_nginx(tmp_path) as nginx:
        (nginx.files / "images").mkdir()
        shutil.copy(boot_iso, nginx.files / "images" / "live.iso")
        checks = examine("--deep", nginx.url("/images/live.iso"))
    assert complaints(checks) == ON_LOOPBACK | {"ignition": "warn"}


def test_nginx_without_ranges_is_named(boot_iso: Path, tmp_path: Path) -> None:
    with running_nginx(tmp_path, "max_ranges 0;") as nginx:
        shutil.copy(boot_iso, nginx.files / "live.iso")
        checks = examine(nginx.url("/live.iso"), status=1)
        assert complaints(checks).items() >= {"ranges": "fail", "accept-ranges": "fail"}.items()
        assert checks["image"][0] == checks["coherence"][0] == "skip"
        assert complaints(examine(nginx.url("/live.iso"), "--profile", "ironic")) == {"dns": "warn"}


def test_certificate_of_another_host_is_named(boot_iso: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("images.example.com", key_type=trustme.KeyType.RSA)
    wrong = Certificate(tmp_path / "key.pem", tmp_path / "chain.pem", tmp_path / "ca.pem")
    leaf.private_key_pem.write_to_path(str(wrong.key))
    leaf.cert_chain_pems[0].write_to_path(str(wrong.chain))
    authority.cert_pem.write_to_path(str(wrong.ca))
    with running_nginx(tmp_path, certificate=wrong) as nginx:
        (nginx.files / "images").mkdir()
        shutil.copy(boot_iso, nginx.files / "images" / "live.iso")
        checks = examine("--ca-file", wrong.ca, nginx.url("/images/live.iso"), status=1)
    assert complaints(checks) == ON_LOOPBACK | {"ignition": "warn", "certificate-name": "fail"}
    assert "images.example.com" in checks["certificate-name"][1]


def test_terminal_without_unicode_gets_the_text(service: Service) -> None:
    command = [sys.executable, "-m", "image_service.cli", "doctor", "-v", f"{service.url}/nothing"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = subprocess.run(command, capture_output=True, check=False, cwd=CHECKOUT, env=environment)
    assert (run.returncode, run.stderr) == (1, b"")
    assert b"? tcp " in run.stdout


def test_text_for_people_has_symbols_and_remedies(service: Service) -> None:
    command = [sys.executable, "-m", "image_service.cli", "doctor", f"{service.url}/nothing"]
    run = subprocess.run(command, capture_output=True, check=False, cwd=CHECKOUT)
    first, *_, passes, skips, last = run.stdout.decode().splitlines()
    assert run.returncode == 1
    assert first.startswith("✗ head ")
    assert "→ correct the URL" in run.stdout.decode()
    assert "! url-suffix " in run.stdout.decode()
    assert re.match("✓ [0-9]+ passed: .*tcp", passes)
    assert re.match("- [0-9]+ skipped: .*ranges", skips)
    assert "a machine will not boot from this URL" in last

"""Configs and kernel arguments that do not fit their areas, as coreos-installer reads them."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.clients import run_client
from tests.acceptance.service import Service, run_service
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

VERSION = "sample"
MIB = 1 << 20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with run_service(tmp_path_factory.mktemp("service"), []) as running:
        yield running


def config_of(size: int, files: int = 1) -> dict[str, Any]:
    """Return an Ignition config with so many bytes of incompressible content, in so many files."""
    noise = base64.b64encode(hashlib.shake_256().digest(size * 3 // 4)).decode()
    piece = size // files
    stored = [
        {
            "path": f"/etc/noise/{n}",
            "contents": {"source": f"data:;base64,{noise[n * piece : (n + 1) * piece]}"},
        }
        for n in range(files)
    ]
    return {"ignition": {"version": "3.4.0"}, "storage": {"files": stored}}


def download(service: Service, path: str, target: Path) -> Path:
    """Fetch with curl, which asks again while the image is being made."""
    retry = ("--retry", "60", "--retry-delay", "1", "--silent", "--show-error", "--fail")
    run_client("curl", *retry, "--output", target, service.url + path)
    return target


@pytest.mark.parametrize("file", ["full.iso", "minimal.iso"])
@pytest.mark.parametrize(("size", "files"), [(MIB, 1), soaked(16 * MIB, 20_000), soaked(40 * MIB, 1)])
def test_coreos_installer_reads_and_resets_it(
    service: Service, tmp_path: Path, size: int, files: int, file: str
) -> None:
    arguments = ["console=ttyS0", "long=" + "x" * 1200]
    infra_env = service.register(VERSION, config_of(size, files), arguments)
    image = download(service, f"/byid/{infra_env}/{VERSION}/x86_64/{file}", tmp_path / "image.iso")
    config = service.ignition_config(infra_env)
    assert len(config) > size
    assert run_client("coreos-installer", "iso", "ignition", "show", image) == config
    shown = run_client("coreos-installer", "iso", "kargs", "show", image).decode().split()
    assert shown[-2:] == arguments
    run_client("coreos-installer", "iso", "kargs", "modify", "--append", "added", image)
    assert run_client("coreos-installer", "iso", "kargs", "show", image).decode().split()[-1] == "added"
    run_client("coreos-installer", "iso", "reset", image)
    small = tmp_path / "small.ign"
    small.write_text('{"ignition": {"version": "3.4.0"}}')
    run_client("coreos-installer", "iso", "ignition", "embed", "--ignition-file", small, image)
    assert run_client("coreos-installer", "iso", "ignition", "show", image) == small.read_bytes()


def test_ranges_across_the_end_of_the_base(service: Service) -> None:
    path = f"/byid/{service.register(VERSION, config_of(MIB))}/{VERSION}/x86_64/full.iso"
    whole = service.get_image(path)
    base = len(
        service.get_image(f"/byid/{service.register(VERSION, config_of(10))}/{VERSION}/x86_64/full.iso").body
    )
    size = len(whole.body)
    assert size > base + MIB
    for first, last in [(base - 1, base), (base - 4096, base + 4096), (base, size - 1), (size - 1, size - 1)]:
        part = service.get_image(path, {"Range": f"bytes={first}-{last}"})
        assert (part.status, part.body) == (206, whole.body[first : last + 1])
    digest = service.get_image(f"{path}.sha256").body.split()[0]
    assert digest == hashlib.sha256(whole.body).hexdigest().encode()


def test_config_larger_than_the_setting_is_refused(tmp_path: Path) -> None:
    with run_service(tmp_path, [], environment={"IGNITION_MAX_BYTES": str(MIB)}) as service:
        infra_env = service.register(VERSION, config_of(2 * MIB))
        answer = service.get(f"/byid/{infra_env}/{VERSION}/x86_64/full.iso")
        assert answer.status == 502
        assert f"larger than {MIB} bytes" in answer.body.decode()

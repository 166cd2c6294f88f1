"""A service whose base images are in a registry: what clients get is what the publisher pushed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.image_states import until
from tests.acceptance.remote import CONFIG, get_ready, image_path, local_entry, remote_entry
from tests.acceptance.service import run_service
from tests.registry_origin import PASSWORD, auth_entry, digest_of
from tests.registry_server import TOKEN_SECONDS, running_docker_registry
from tests.remote_base import MIB, dense_base

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

REPOSITORY = "tests/iso"


def check_no_secret(service: Service) -> None:
    """Search all that the service reports for credentials and tokens."""
    reported = service.output + service.get("/images").body + service.get("/metrics").body
    files = [path for path in service.directory.joinpath("data").rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files if path.stat().st_size < MIB)
    for secret in (PASSWORD, auth_entry()["auth"], "Bearer "):
        assert secret.encode() not in reported + stored


def check_metrics(service: Service, host: str, layer: str) -> None:
    """One is read by the layer's digest, one was named by the image's, and one has no credentials."""
    ours = f'registry="{host}",repository="{REPOSITORY}"'
    answered = service.total(rf'registry_requests_total\{{outcome="answered",{ours}\}}')
    assert answered > 0
    other = f'registry="{host}",repository="other/iso"'
    assert service.total(rf'registry_requests_total\{{outcome="unauthorized",{other}\}}') > 0
    assert service.total(rf'registry_base_images\{{digest="{layer}",{ours}\}}') == 1
    assert service.total(rf'registry_base_images\{{digest="sha256:.*",{ours}\}}') == 2
    assert service.total(rf'registry_base_images\{{digest="",{other}\}}') == 0


def test_images_of_a_registry_are_those_of_a_file(tmp_path: Path) -> None:
    """One stays in the registry, one is downloaded; the third has no credentials and says so."""
    assert TOKEN_SECONDS == 60
    content = dense_base(8)
    (tmp_path / "base.iso").write_bytes(content)
    (tmp_path / "registry").mkdir()
    with running_docker_registry(tmp_path / "registry", "token") as registry:
        digest = registry.push(REPOSITORY, "1", {"base.iso": content})
        assert registry.ca_file is not None
        certificates = tmp_path / "certs.d" / registry.host
        certificates.mkdir(parents=True)
        (certificates / "ca.crt").write_bytes(registry.ca_file.read_bytes())
        auths = {f"{registry.host}/tests": auth_entry()}
        (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
        environment = {
            "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json"),
            "REGISTRY_CERTS_DIR": str(tmp_path / "certs.d"),
            "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE": str(registry.ca_file),
            "READY_WHEN": "any",
        }
        image = f"oci://{registry.host}/{REPOSITORY}"
        entries = [
            local_entry(tmp_path / "base.iso", "local"),
            remote_entry(f"{image}:1", "remote"),
            remote_entry(f"{image}@{digest}", "downloaded", remote=False),
            remote_entry(f"oci://{registry.host}/other/iso:1", "refused"),
        ]
        with run_service(tmp_path, entries, environment=environment) as service:
            infra_env = service.register("local", CONFIG)
            for name in ("remote", "downloaded"):
                found = until(service, name, "ready")
                assert str(found["url"]).startswith(image)
            contents = {
                name: get_ready(service, image_path(infra_env, name)).body
                for name in ("local", "remote", "downloaded")
            }
            assert contents["remote"] == contents["downloaded"] == contents["local"]
            reason = str(until(service, "refused", "failed")["reason"])
            assert f"{registry.host}/other/iso" in reason
            assert "401" in reason
            check_metrics(service, registry.host, digest_of(content))
            check_no_secret(service)

"""Real registries: artifacts and images that their own clients pushed."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.settings import Settings
from tests.acceptance.clients import run_client
from tests.registry_origin import PASSWORD, auth_entry
from tests.registry_server import RegistryServer, running_crane_registry, running_docker_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPOSITORY = "tests/iso"
CONTENT = bytes(range(256)) * 5000


@pytest.fixture(params=["docker", "docker basic", "docker token", "crane"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryServer]:
    """A running registry."""
    (tmp_path / "registry").mkdir()
    kind, _, auth = request.param.partition(" ")
    if kind == "crane":
        with running_crane_registry(tmp_path / "registry") as running:
            yield running
    else:
        with running_docker_registry(tmp_path / "registry", auth) as running:
            yield running


def client_of(registry: RegistryServer, directory: Path, password: str = PASSWORD) -> OriginClient:
    """Return a client that is told about the registry what an operator would tell it."""
    environ = {"DATA_DIR": str(directory)}
    if registry.ca_file is None:
        environ["INSECURE_REGISTRIES"] = registry.host
    else:
        certificates = directory / "certs.d" / registry.host
        certificates.mkdir(parents=True)
        (certificates / "ca.crt").write_bytes(registry.ca_file.read_bytes())
        auths = {"auths": {f"{registry.host}/tests": auth_entry(password=password)}}
        (directory / "auth.json").write_text(json.dumps(auths))
        environ["REGISTRY_CERTS_DIR"] = str(directory / "certs.d")
        environ["REGISTRY_AUTH_FILE"] = str(directory / "auth.json")
        environ["OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE"] = str(registry.ca_file)  # of the token server
    settings = Settings.from_environment(environ, standalone=True)
    return OriginClient.from_settings(settings.download, registries=settings.registries)


def fetch(client: OriginClient, url: str, partial: Path) -> bytes:
    download_file(client, url, partial, Interruption(), architecture="x86_64")
    return partial.read_bytes()


def test_artifact_is_fetched_and_wrong_credentials_are_named(
    registry: RegistryServer, tmp_path: Path
) -> None:
    digest = registry.push(REPOSITORY, "1", {"a.iso": CONTENT, "a.iso.sig": b"signature"})
    client, partial = client_of(registry, tmp_path), tmp_path / "part"
    assert fetch(client, f"oci://{registry.host}/{REPOSITORY}:1#a.iso", partial) == CONTENT
    assert fetch(client, f"oci://{registry.host}/{REPOSITORY}@{digest}#a.iso.sig", partial) == b"signature"
    with pytest.raises(Unavailable, match="404 to manifest 2"):
        fetch(client, f"oci://{registry.host}/{REPOSITORY}:2", partial)
    if registry.ca_file is not None:
        wrong = client_of(registry, tmp_path / "wrong", "wrong-secret")
        with pytest.raises(Unavailable, match="401") as caught:
            fetch(wrong, f"oci://{registry.host}/{REPOSITORY}:1#a.iso", partial)
        assert "secret" not in caught.value.detail
    if registry.token_requests:
        assert all("scope=repository%3Atests%2Fiso%3Apull" in each.target for each in registry.token_requests)


def test_registry_of_an_unknown_authority_is_not_read(tmp_path: Path) -> None:
    with running_docker_registry(tmp_path, "basic") as registry:
        settings = Settings.from_environment({"DATA_DIR": "/tmp"}, standalone=True)
        client = OriginClient.from_settings(settings.download, registries=settings.registries)
        with pytest.raises(Unavailable, match=r"certificate: .*REGISTRY_CERTS_DIR"):
            fetch(client, f"oci://{registry.host}/{REPOSITORY}:1", tmp_path / "part")


@pytest.mark.parametrize("kind", ["docker", "crane"])
def test_file_in_an_image_that_crane_pushed_and_skopeo_copied(tmp_path: Path, kind: str) -> None:
    run = running_docker_registry if kind == "docker" else running_crane_registry
    (tmp_path / "registry").mkdir()
    (tmp_path / "coreos.iso").write_bytes(CONTENT)
    for name, path in (("lower", "coreos/coreos-x86_64.iso"), ("upper", "bin/copy")):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            archive.add(tmp_path / "coreos.iso", path)
    with run(tmp_path / "registry") as registry:
        image = f"{registry.host}/{REPOSITORY}"
        for source, layer in ((None, "lower"), ("0", "upper")):
            base = ["-b", f"{image}:{source}"] if source else []
            tag = "1" if source else "0"
            run_client("crane", "append", *base, "-f", tmp_path / f"{layer}.tar", "-t", f"{image}:{tag}")
        run_client(
            "skopeo",
            *("--insecure-policy", "copy", "--src-tls-verify=false", "--dest-tls-verify=false"),
            *("--format=oci", "--dest-compress-format=zstd"),
            *(f"docker://{image}:1", f"docker://{registry.host}/copies/iso:zstd"),
        )
        client = client_of(registry, tmp_path)
        for name in (f"{REPOSITORY}:1", "copies/iso:zstd"):
            url = f"oci://{registry.host}/{name}#/coreos/coreos-x86_64.iso"
            assert fetch(client, url, tmp_path / f"{name.replace('/', '-')}.part") == CONTENT

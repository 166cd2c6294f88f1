"""Streams and the mirror: coreos-installer lists and downloads from it as from the origin."""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import trustme
import yaml

from tests.acceptance.clients import run_client
from tests.acceptance.releases import LEAST_BYTES, Release, serve, tell
from tests.acceptance.service import Service, run_service
from tests.core.families.coreos.streams import config_map, fixture, metal, stream
from tests.registry_origin import RegistryOrigin, publish_payload
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.05
SIGNATURE = b"\x89\x02\x33\x04\x00 signature of the kernel"


FIRST, SECOND = Release.make("44.1"), Release.make("44.2")


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as server:
        yield server


@contextmanager
def following(directory: Path, origin: Origin, name: str = "stable", **environ: str) -> Iterator[Service]:
    source = {"stream": name, "url": origin.url("/streams/stable.json"), "architectures": ["x86_64"]}
    environment = {"COREOS_STREAMS": json.dumps([source]), "STREAM_REFRESH": "1", **environ}
    directory.mkdir(exist_ok=True)
    with run_service(directory, [], environment=environment) as service:
        yield service


def document(service: Service, name: str = "stable", release: str | None = None) -> dict[str, Any]:
    """Wait for a document of the mirror that describes the release; return it."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        answer = service.get(f"/streams/{name}.json")
        found: dict[str, Any] = answer.json()
        if answer.status == 200 and release in {None, offered(found)}:
            return found
        assert time.monotonic() < deadline, service.output.decode()
        time.sleep(_POLL_SECONDS)


def offered(told: dict[str, Any]) -> object:
    return told["architectures"]["x86_64"]["artifacts"]["metal"]["release"]


def download(service: Service, directory: Path, image_format: str, name: str = "stable") -> dict[str, bytes]:
    """Return what coreos-installer downloads, by file name."""
    directory.mkdir()
    base = ("--stream-base-url", f"{service.url}/streams/", "--stream", name)
    options = ("--platform", "metal", "--format", image_format, "--architecture", "x86_64", "--insecure")
    run_client("coreos-installer", "download", *base, *options, "--directory", directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_coreos_installer_lists_and_downloads_from_the_mirror(tmp_path: Path, origin: Origin) -> None:
    tell(origin, FIRST)
    with following(tmp_path / "service", origin) as service:
        document(service)
        base = f"{service.url}/streams/"
        listed = run_client("coreos-installer", "list-stream", "--stream-base-url", base).decode()
        assert sorted(tuple(line.split()) for line in listed.splitlines()[1:]) == [
            ("x86_64", "metal", "iso"),
            ("x86_64", "metal", "pxe"),
        ]
        assert download(service, tmp_path / "iso", "iso") == {"fcos-44.1-live-iso.x86_64.iso": FIRST.iso}
        assert download(service, tmp_path / "pxe", "pxe") == {
            "fcos-44.1-live-kernel.x86_64": FIRST.parts["kernel"],
            "fcos-44.1-live-initramfs.x86_64.img": FIRST.parts["initramfs"],
            "fcos-44.1-live-rootfs.x86_64.img": FIRST.parts["rootfs"],
        }


def test_mirrored_artifacts_match_their_metadata(tmp_path: Path, origin: Origin) -> None:
    tell(origin, FIRST, SIGNATURE)
    with following(tmp_path / "service", origin) as service:
        told = document(service)
        jsonschema.Draft202012Validator(json.loads(fixture("stream.schema.json"))).validate(told)
        assert told == document(service, "stable-44.1")
        formats = told["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]
        for artifact in (formats["iso"]["disk"], *formats["pxe"].values()):
            served = service.get(urlsplit(artifact["location"]).path)
            assert hashlib.sha256(served.body).hexdigest() == artifact["sha256"]
            signature = service.get(urlsplit(artifact["signature"]).path)
            if artifact is formats["pxe"]["kernel"]:
                assert (signature.status, signature.body) == (200, SIGNATURE)
            else:
                assert signature.status == 404


def test_stream_name_is_served_as_an_openshift_version(tmp_path: Path, origin: Origin) -> None:
    tell(origin, FIRST)
    with following(tmp_path / "service", origin) as service:
        infra_env_id = service.register("stable", {"ignition": {"version": "3.2.0"}})
        image = service.get_image(f"/byid/{infra_env_id}/stable/x86_64/full.iso")
        assert (image.status, len(image.body)) == (200, len(FIRST.iso))


def test_restart_without_the_origin_serves_stored_releases(tmp_path: Path) -> None:
    with running() as origin:
        tell(origin, FIRST)
        with following(tmp_path / "service", origin) as service:
            told = offered(document(service))
    # Nobody listens there any more.
    with following(tmp_path / "service", origin) as service:
        assert offered(document(service)) == told == "44.1"
        assert download(service, tmp_path / "iso", "iso") == {"fcos-44.1-live-iso.x86_64.iso": FIRST.iso}


def test_new_release_is_mirrored_when_ready_and_the_old_one_stays(tmp_path: Path, origin: Origin) -> None:
    tell(origin, FIRST)
    with following(tmp_path / "service", origin) as service:
        before = document(service, "stable-44.1")
        tell(origin, SECOND)
        document(service, release="44.2")
        assert document(service, "stable-44.1") == before
        assert download(service, tmp_path / "iso", "iso") == {"fcos-44.2-live-iso.x86_64.iso": SECOND.iso}
        infra_env_id = service.register("stable", {"ignition": {"version": "3.2.0"}})
        for version, release in (("stable", SECOND), ("44.1", FIRST)):
            image = service.get_image(f"/byid/{infra_env_id}/{version}/x86_64/full.iso")
            assert image.status == 200
            assert image.body[-LEAST_BYTES:] == release.iso[-LEAST_BYTES:]


def image_states(service: Service) -> dict[str, str]:
    """The state of each base image, by version."""
    told: dict[str, Any] = service.get("/images").json()
    return {image["version"]: image["state"] for image in told["images"]}


def wait_for_states(service: Service, expected: dict[str, str]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while image_states(service) != expected:
        assert time.monotonic() < deadline, (image_states(service), service.output.decode())
        time.sleep(_POLL_SECONDS)


def test_failed_release_does_not_push_out_the_one_that_serves(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = {"OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE": str(tmp_path / "ca.pem")}
    first, second, third = (Release.complete(version) for version in ("44.1", "44.2", "44.3"))
    with running(context) as origin:
        tell(origin, first)
        with following(tmp_path / "service", origin, "4.17", **trust) as service:
            infra_env_id = service.register("4.17", {"ignition": {"version": "3.2.0"}})
            wait_for_states(service, {"44.1": "ready"})

            tell(origin, second)
            serve(origin, iso_url(origin, "44.2"), first.iso)  # not what its digest says
            wait_for_states(service, {"44.2": "failed", "44.1": "ready"})

            tell(origin, third)
            held = Reply(third.iso[:4096], promised=len(third.iso), hold=True)
            origin.replies[iso_url(origin, "44.3").removeprefix(origin.url(""))] = [held, Reply(third.iso)]
            wait_for_states(service, {"44.3": "downloading", "44.1": "ready"})
            image = service.get_image(f"/byid/{infra_env_id}/4.17/x86_64/full.iso")
            assert image.status == 200
            assert (b"44.1" in image.body, b"44.3" in image.body) == (True, False)
            origin.released.set()
            wait_for_states(service, {"44.3": "ready", "44.1": "ready"})
            assert offered(document(service, "4.17", "44.3")) == "44.3"


def iso_url(origin: Origin, version: str) -> str:
    return str(metal(version, "x86_64", origin.url(""))["formats"]["iso"]["disk"]["location"])


def raw_location(service: Service, name: str) -> str:
    metal = document(service, name)["architectures"]["x86_64"]["artifacts"]["metal"]
    return str(metal["formats"]["raw.xz"]["disk"]["location"])


def test_two_rhel_generations_stand_under_one_openshift_version(tmp_path: Path, origin: Origin) -> None:
    rhel9, rhel10 = Release.make("9.8.20260715-0"), Release.make("10.2.20260715-0")
    raw = b"raw disk" * LEAST_BYTES
    location = origin.url("/rhcos-metal.x86_64.raw.xz")
    serve(origin, location, raw)
    disk = {"disk": {"location": location, "sha256": hashlib.sha256(raw).hexdigest()}}
    streams = {}
    for name, release in (("rhel-9", rhel9), ("rhel-10", rhel10)):
        told = release.publish(origin, None)
        told["formats"]["raw.xz"] = disk
        streams[name] = stream(release.version)
        streams[name]["architectures"]["x86_64"]["artifacts"]["metal"] = told
    published = tmp_path / "coreos-bootimages.yaml"
    published.write_bytes(config_map(streams, "rhel-9", as_yaml=True))
    source = {"url": published.as_uri(), "architectures": ["x86_64"], "openshift_version": "4.22"}
    sources = [{**source, "stream": "rhel-10"}, {**source, "stream": "rhel-9", "mirror": ["metal/raw.xz"]}]
    with run_service(tmp_path, [], environment={"COREOS_STREAMS": json.dumps(sources)}) as service:
        for name, release in (("rhel-9", rhel9), ("rhel-10", rhel10)):
            document(service, name, release.version)
        infra_env_id = service.register("4.22", {"ignition": {"version": "3.2.0"}})
        for version, release in (
            ("4.22", rhel9),
            (rhel9.version, rhel9),
            (rhel10.version, rhel10),
            ("rhel-10", rhel10),
        ):
            image = service.get_image(f"/byid/{infra_env_id}/{version}/x86_64/full.iso")
            assert image.status == 200
            assert image.body[-LEAST_BYTES:] == release.iso[-LEAST_BYTES:]
        data = yaml.safe_load(service.get("/streams/4.22/configmap.yaml").body)["data"]
        assert {name: offered(told) for name, told in json.loads(data["streams"]).items()} == {
            "rhel-9": rhel9.version,
            "rhel-10": rhel10.version,
        }
        assert (offered(json.loads(data["stream"])), data["releaseVersion"]) == (rhel9.version, "4.22")
        assert raw_location(service, "rhel-10") == location
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while raw_location(service, "rhel-9") == location:
            assert time.monotonic() < deadline, service.output.decode()
            time.sleep(_POLL_SECONDS)
        for name in streams:
            found = download(service, tmp_path / name, "raw.xz", name)
            assert found == {"rhcos-metal.x86_64.raw.xz": raw}
        assert service.get(urlsplit(raw_location(service, "rhel-9")).path).body == raw


def test_release_payload_is_a_source_of_streams(tmp_path: Path, origin: Origin) -> None:
    """Only the registry is there: no location of the stream metadata answers."""
    payload, images = (RegistryOrigin(origin, f"ocp/{name}") for name in ("release", "art-dev"))
    releases = {"rhel-9": Release.make("9.8.20260715-0"), "rhel-10": Release.make("10.2.20260715-0")}
    streams = {}
    for name, release in releases.items():
        streams[name] = stream(release.version, origin="https://nowhere.invalid")
        told = streams[name]["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"]
        told["sha256"], told["signature"] = hashlib.sha256(release.iso).hexdigest(), ""
    isos = {"coreos-x86_64.iso": releases["rhel-9"].iso, "coreos10-x86_64.iso": releases["rhel-10"].iso}
    publish_payload(payload, images, {"x86_64": isos}, config_map(streams, "rhel-9", as_yaml=True))
    source = {
        "url": f"release://{payload.host}/{payload.repository}:5.0",
        "architectures": ["x86_64"],
        "openshift_version": "5.0",
    }
    environment = {
        "COREOS_STREAMS": json.dumps([{**source, "stream": name} for name in releases]),
        "INSECURE_REGISTRIES": payload.host,
    }
    with run_service(tmp_path, [], environment=environment) as service:
        infra_env_id = service.register("5.0", {"ignition": {"version": "3.2.0"}})
        for name, release in releases.items():
            assert offered(document(service, name, release.version)) == release.version
            image = service.get_image(f"/byid/{infra_env_id}/{release.version}/x86_64/full.iso")
            assert image.body[-LEAST_BYTES:] == release.iso[-LEAST_BYTES:]
        data = yaml.safe_load(service.get("/streams/5.0/configmap.yaml").body)["data"]
        assert offered(json.loads(data["stream"])) == releases["rhel-9"].version
        assert set(json.loads(data["streams"])) == set(releases)
        assert b"image-service.payload" not in service.get("/streams/rhel-9.json").body

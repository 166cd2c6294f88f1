"""Real registries: artifacts and images that their own clients pushed."""

from __future__ import annotations

import http.client
import io
import itertools
import json
import tarfile
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.registry.references import parse_registry_url
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.remote.registry_origin import RegistryLayer
from image_service.server.catalog.remote.source import PinnedSource
from image_service.settings.settings import Settings
from tests.acceptance.clients import run_client
from tests.registry_origin import PASSWORD, auth_entry
from tests.registry_server import RegistryServer, running_crane_registry, running_docker_registry
from tests.server.catalog.origin import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.server.catalog.origin import Origin, ReceivedRequest

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


def append(directory: Path, image: str, files: Mapping[str, bytes]) -> str:
    """Push an image with one layer by crane; return its digest."""
    with tarfile.open(directory / "layer.tar", "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    pushed = run_client("crane", "append", "-f", directory / "layer.tar", "-t", image).decode()
    return pushed.strip().rpartition("@")[2]


def test_payload_of_a_release_is_read_from_a_mirror_alone(tmp_path: Path) -> None:
    """The site knows the names of the release; their registry does not exist for it."""
    (tmp_path / "registry").mkdir()
    with running_docker_registry(tmp_path / "registry") as mirror:
        isos = {"coreos/coreos-x86_64.iso": CONTENT, "coreos/coreos10-x86_64.iso": CONTENT[::-1]}
        images = append(tmp_path, f"{mirror.host}/mirror/art-dev:1", isos)
        tags = [{"name": "machine-os-images", "from": {"name": f"quay.invalid/ocp/art-dev@{images}"}}]
        references = json.dumps({"kind": "ImageStream", "spec": {"tags": tags}}).encode()
        payload = append(
            tmp_path, f"{mirror.host}/mirror/release:5.0", {"release-manifests/image-references": references}
        )
        (tmp_path / "registries.conf").write_text(
            '[[registry]]\nlocation = "quay.invalid/ocp"\nmirror-by-digest-only = true\n'
            f'[[registry.mirror]]\nlocation = "{mirror.host}/mirror"\ninsecure = true\n'
        )
        environ = {
            "DATA_DIR": str(tmp_path),
            "CONTAINERS_REGISTRIES_CONF": str(tmp_path / "registries.conf"),
        }
        settings = Settings.from_environment(environ, standalone=True)
        client = OriginClient.from_settings(settings.download, registries=settings.registries)
        url = f"release://quay.invalid/ocp/release@{payload}"
        assert fetch(client, f"{url}#rhel-9", tmp_path / "rhel-9.part") == CONTENT
        assert fetch(client, f"{url}#rhel-10", tmp_path / "rhel-10.part") == CONTENT[::-1]
        with pytest.raises(Unavailable, match=r"quay\.invalid/ocp/release: its name does not resolve"):
            fetch(client, "release://quay.invalid/ocp/release:5.0", tmp_path / "part")
        (tmp_path / "sets.yaml").write_text(
            "kind: ImageDigestMirrorSet\nspec:\n  imageDigestMirrors:\n  - source: quay.invalid/ocp\n"
            f"    mirrors: ['{mirror.host}/mirror']\n    mirrorSourcePolicy: NeverContactSource\n"
        )
        environ |= {
            "CONTAINERS_REGISTRIES_CONF": str(tmp_path / "sets.yaml"),
            "INSECURE_REGISTRIES": mirror.host,
        }
        settings = Settings.from_environment(environ, standalone=True)
        client = OriginClient.from_settings(settings.download, registries=settings.registries)
        assert fetch(client, f"{url}#rhel-9", tmp_path / "sets.part") == CONTENT
        with pytest.raises(Unavailable, match=r"blocks quay\.invalid/ocp, and it has no mirror .* by tag"):
            fetch(client, "release://quay.invalid/ocp/release:5.0", tmp_path / "part")


# A proxy that spoils what a real registry answers.


@attrs.define
class FaultProxy:
    """Forwards requests to a registry.

    Args:
        spoil: changes its reply to a request of a blob.
        needs_token: requests need the latest token, which it issues to everybody.
    """

    origin: Origin
    registry: RegistryServer
    spoil: Callable[[ReceivedRequest, Reply], Reply] = lambda _, reply: reply
    statuses: list[int] = attrs.field(factory=list)
    needs_token: bool = False
    tokens: int = 0

    def __attrs_post_init__(self) -> None:
        self.origin.replies = defaultdict(lambda: [self.forward])

    def forward(self, request: ReceivedRequest) -> Reply:
        """Return the registry's reply, spoilt if it is of a blob."""
        if request.target.startswith("/token"):
            self.tokens += 1
            return Reply(json.dumps({"token": f"token-{self.tokens}"}).encode())
        if self.needs_token and request.headers["Authorization"] != f"Bearer token-{self.tokens}":
            challenge = f'Bearer realm="{self.origin.url("/token")}"'
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        with closing(http.client.HTTPConnection("127.0.0.1", self.registry.port)) as connection:
            connection.request(request.method, request.target, headers=dict(request.headers))
            response = connection.getresponse()
            body = response.read()
        fields = {name: value for name, value in response.getheaders() if name not in _OWN_FIELDS}
        reply = Reply(body, response.status, fields)
        if "/blobs/" not in request.target:
            return reply
        self.statuses.append(response.status)
        return self.spoil(request, reply)


SCOPE = f"scope=repository%3A{REPOSITORY.replace('/', '%2F')}%3Apull"
_OWN_FIELDS = {"Content-Length", "Date", "Transfer-Encoding"}


@pytest.fixture(params=["docker", "crane"])
def proxy(request: pytest.FixtureRequest, origin: Origin, tmp_path: Path) -> Iterator[FaultProxy]:
    """A proxy of a registry with one artifact."""
    (tmp_path / "registry").mkdir()
    run = running_docker_registry if request.param == "docker" else running_crane_registry
    with run(tmp_path / "registry") as registry:
        registry.push(REPOSITORY, "1", {"a.iso": CONTENT})
        yield FaultProxy(origin, registry)


def client_through(proxy: FaultProxy, directory: Path) -> OriginClient:
    host = f"127.0.0.1:{proxy.origin.port}"
    environ = {"INSECURE_REGISTRIES": f"{host},{proxy.registry.host}", "DATA_DIR": str(directory)}
    settings = Settings.from_environment(environ, standalone=True)
    return OriginClient.from_settings(settings.download, registries=settings.registries)


def fetch_through(proxy: FaultProxy, directory: Path) -> bytes:
    url = f"oci://127.0.0.1:{proxy.origin.port}/{REPOSITORY}:1"
    return fetch(client_through(proxy, directory), url, directory / "part")


def test_cut_bodies_are_continued_by_ranges_of_the_registry(proxy: FaultProxy, tmp_path: Path) -> None:
    def cut(request: ReceivedRequest, reply: Reply) -> Reply:
        if (request.headers["Range"] or "").endswith("-"):  # as crane's registry answers, and others
            return Reply(status=416)
        return attrs.evolve(reply, body=reply.body[:400_000], promised=len(reply.body))

    proxy.spoil = cut
    assert fetch_through(proxy, tmp_path) == CONTENT
    assert proxy.statuses == [200, 206, 206, 206]


def test_token_that_ends_in_the_middle_of_a_read_is_renewed(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.needs_token = True

    def cut_and_end(_: ReceivedRequest, reply: Reply) -> Reply:
        proxy.tokens += 1  # the one that was issued has ended
        return attrs.evolve(reply, body=reply.body[:400_000], promised=len(reply.body))

    proxy.spoil = cut_and_end
    assert fetch_through(proxy, tmp_path) == CONTENT
    assert proxy.statuses == [200, 206, 206, 206]
    assert [each.target for each in proxy.origin.requests].count(f"/token?{SCOPE}") == 4


def test_registry_that_is_busy_is_asked_again_when_it_says(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.spoil = lambda *_: Reply(status=429, headers={"Retry-After": "77"})
    with pytest.raises(Unavailable, match=r"status 429 to blob sha256:\w+$") as caught:
        fetch_through(proxy, tmp_path)
    assert caught.value.retry_after_seconds == 77
    proxy.spoil = lambda _, reply: reply
    assert fetch_through(proxy, tmp_path) == CONTENT


def test_ranges_of_a_remote_layer_are_healed(proxy: FaultProxy, tmp_path: Path) -> None:
    """Each fault in turn: of two attempts in a row, one is right."""
    faults: Iterator[Callable[[Reply], Reply]] = itertools.cycle(
        [
            lambda reply: attrs.evolve(reply, body=reply.body[:1000], promised=len(reply.body)),
            lambda reply: reply,
            lambda reply: attrs.evolve(reply, status=200),
            lambda reply: reply,
            lambda _: Reply(status=416),
            lambda reply: reply,
        ]
    )
    client = client_through(proxy, tmp_path)
    url = parse_registry_url(f"oci://127.0.0.1:{proxy.origin.port}/{REPOSITORY}:1")
    layer = RegistryLayer(url, "x86_64", client.registries, Interruption())
    pin = layer.find_version()
    proxy.spoil = lambda _, reply: next(faults)(reply)
    source = PinnedSource(layer, pin, "a.iso", lambda: None)
    content = bytearray(len(CONTENT))
    for offset in range(0, len(CONTENT), 300_000):
        source.fetch(offset, memoryview(content)[offset : offset + 300_000])
    assert content == CONTENT
    assert proxy.statuses.count(206) == 11


def test_redirects_to_another_host_are_followed(proxy: FaultProxy, tmp_path: Path) -> None:
    def redirect(request: ReceivedRequest, _: Reply) -> Reply:
        return Reply(status=307, headers={"Location": f"http://{proxy.registry.host}{request.target}"})

    proxy.spoil = redirect
    assert fetch_through(proxy, tmp_path) == CONTENT


def test_changed_byte_is_refused_and_healed(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.spoil = lambda _, reply: attrs.evolve(reply, body=b"x" + reply.body[1:])
    with pytest.raises(Unavailable, match="the digest of blob"):
        fetch_through(proxy, tmp_path)
    proxy.spoil = lambda _, reply: attrs.evolve(reply, promised=-1)  # and without a length
    assert fetch_through(proxy, tmp_path) == CONTENT

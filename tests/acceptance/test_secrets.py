"""Known secrets, put into every place where one can occur: none appears in a log, an error or a file.

The log level is the most verbose. Images, the stand-in's database, and its API's answers to authorized
clients contain the customization by design; they are left out.
"""

from __future__ import annotations

import base64
import json
import socket
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from image_service.server.standalone.sample import SAMPLE_OPENSHIFT_VERSION
from tests.acceptance.service import INFRA_ENVS, SERVE, Answer, Service, fetch, run_service
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.fork_server import INTERPRETERS
from tests.ports import free_port
from tests.server.catalog import origin
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.acceptance

TALKATIVE = {"LOGLEVEL": "debug", "LOG_RANGES": "each"}
CREDENTIALS = ("query_api_key", "query_image_token", "authorization", "path_api_key", "path_token")
OF_DOWNLOADS = ("image_url", "image_headers", "image_parameters")

_SOCKET_SECONDS = 20


def secret(place: str) -> str:
    """Return a secret that occurs nowhere else in the output."""
    return sha256(f"secret of {place}".encode()).hexdigest()


@attrs.define
class Evidence:
    """The output of a service.

    Args:
        found: outputs by description.
        statuses: of all responses.
    """

    found: dict[str, bytes] = attrs.field(factory=dict)
    statuses: set[int] = attrs.field(factory=set)

    def add(self, request: str, answer: Answer) -> None:
        """Record a response; of a successful one only its head."""
        self.statuses.add(answer.status)
        self.found[request] = json.dumps(dict(answer.headers)).encode()
        if answer.status >= 400:
            self.found[request] += answer.body

    def check(self, *places: str) -> None:
        """Report every secret that was found, and where."""
        leaks = [
            (place, name)
            for place in places
            for name, content in self.found.items()
            if secret(place).encode() in content
        ]
        assert not leaks


CONFIG = {"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": secret("ignition")}]}}
_BODY = json.dumps(CONFIG).encode()
# What assisted-service says when it is asked for the config of each infra-env.
UPSTREAM: Mapping[str, origin.Reply] = {
    "served": origin.Reply(_BODY),
    "unauthorized": origin.Reply(_BODY, status=401),
    "forbidden": origin.Reply(_BODY, status=403),
    "absent": origin.Reply(_BODY, status=404),
    "failing": origin.Reply(_BODY, status=500),
    "redirecting": origin.Reply(_BODY, 302, {"Location": f"/?token={secret('ignition')}"}),
    "cut off": origin.Reply(_BODY, promised=len(_BODY) + 1),
    "not JSON": origin.Reply(_BODY[:-1]),
    "not Ignition": origin.Reply(_BODY.replace(b"3.2.0", secret("ignition").encode())),
    "hanging": origin.Reply(_BODY, promised=len(_BODY) + 1, hold=True),
}
IDS = {name: f"{index:08x}-0000-4000-8000-000000000000" for index, name in enumerate(UPSTREAM)}
INFRA_ENV = json.dumps({"pull_secret": secret("infra_env")}).encode()


@pytest.fixture
def upstream() -> Iterator[origin.Origin]:
    """Serve as assisted-service and as the origin of base images."""
    with origin.running() as server:
        for name, answer in UPSTREAM.items():
            server.serve(f"{INFRA_ENVS}/{IDS[name]}/downloads/files", answer)
            server.serve(f"{INFRA_ENVS}/{IDS[name]}", origin.Reply(INFRA_ENV))
        server.serve("/live.iso", origin.Reply(build_live_iso()))
        server.serve("/moved.iso", origin.Reply(status=302, headers={"Location": "/live.iso"}))
        server.serve("/short.iso", origin.Reply(b"short", promised=6))
        yield server


@pytest.mark.parametrize("workers", [soaked("1"), "2"])
def test_no_secret_is_in_any_output_in_production(
    upstream: origin.Origin, tmp_path: Path, workers: str
) -> None:
    evidence = Evidence()
    environment = {
        **TALKATIVE,
        "ASSISTED_SERVICE_HOST": urlsplit(upstream.url("")).netloc,
        "OS_IMAGES_REQUEST_HEADERS": json.dumps({"X-Key": secret("image_headers")}),
        "OS_IMAGES_REQUEST_QUERY_PARAMS": json.dumps({"key": secret("image_parameters")}),
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": secret("foreign"),
        "TOKEN_OF_ANOTHER_PROGRAM": secret("foreign"),
        "UPSTREAM_TIMEOUT": "1",
        "WORKERS": workers,
        INTERPRETERS: "1",
        "ADMIN_LISTEN": (admin := f"127.0.0.1:{free_port()}"),
        "ADMIN_TOKEN_FILE": str(tmp_path / "token"),
    }
    (tmp_path / "token").write_text(secret("admin"))
    with run_service(tmp_path, _os_images(upstream), command=SERVE, environment=environment) as service:
        _ask_for_images(service, evidence)
        _ask_badly(service.url, evidence)
        _ask_administration(f"http://{admin}", evidence)
        environments = _environments_of_children(service)
        assert len(environments) == (int(workers) if workers != "1" else 0)
        evidence.found |= environments
    evidence.found |= {"output": service.output, **_files(tmp_path / "data")}
    evidence.check("ignition", "infra_env", "admin", "wrong_admin", "foreign", *CREDENTIALS, *OF_DOWNLOADS)
    assert evidence.statuses >= {200, 401, 403, 404, 405, 412, 416, 422, 502, 503, 504}
    asked = "".join(f"{each.target} {each.headers}" for each in upstream.requests)
    assert [place for place in (*CREDENTIALS, *OF_DOWNLOADS) if secret(place) not in asked] == []


def test_no_secret_is_in_any_output_in_standalone_mode(tmp_path: Path) -> None:
    evidence = Evidence()
    environment = {**TALKATIVE, "STANDALONE_TOKEN": secret("token")}
    command = (*SERVE, "--standalone")
    with run_service(tmp_path, [], command=command, environment=environment) as service:
        infra_env_id = service.register(SAMPLE_OPENSHIFT_VERSION, CONFIG)
        for place, path, headers in _requests(infra_env_id, SAMPLE_OPENSHIFT_VERSION):
            evidence.add(f"image with {place}", service.get(path, headers))
        _ask_api_wrongly(service, infra_env_id, evidence)
        _ask_badly(service.api_url, evidence)
    evidence.found["output"] = service.output
    evidence.check("ignition", "token", "wrong_token", "keyfile", *CREDENTIALS)
    assert evidence.statuses >= {200, 400, 401, 404, 405, 415}


def _ask_administration(url: str, evidence: Evidence) -> None:
    """Request pages of the administrative listener; they hold no secret either."""
    for place, status in (("admin", 200), ("wrong_admin", 401)):
        password = base64.b64encode(f"admin:{secret(place)}".encode()).decode()
        for authorization in (f"Bearer {secret(place)}", f"Basic {password}"):
            for path in ("/metrics", "/images", f"/images?token={secret(place)}"):
                answer = fetch(url + path, headers={"Authorization": authorization})
                assert answer.status == status
                evidence.add(f"{path} with {authorization[:5]} of {place}", answer)
                evidence.found[f"content of {path}, {authorization[:5]}, {place}"] = answer.body


def _environments_of_children(service: Service) -> dict[str, bytes]:
    """Return the environments that the workers were started with."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {f"environ of {child}": Path(f"/proc/{child}/environ").read_bytes() for child in children}


def _os_images(upstream: origin.Origin) -> list[dict[str, str]]:
    """Return one base image that can be downloaded, and three with faults or redirects."""
    return [
        {
            "openshift_version": version,
            "cpu_architecture": "x86_64",
            "version": version,
            "url": upstream.url(f"/{version}.iso?signature={secret('image_url')}"),
        }
        for version in ("live", "moved", "absent", "short")
    ]


def _ask_for_images(service: Service, evidence: Evidence) -> None:
    for name, infra_env_id in IDS.items():
        for place, path, headers in _requests(infra_env_id, "live"):
            evidence.add(f"{name} with {place}", service.get(path, headers))
    for version in ("moved", "absent", "short", "unknown"):
        for place, path, headers in _requests(IDS["served"], version):
            evidence.add(f"{version} with {place}", service.get(path, headers))
    for place, path, headers in _requests(IDS["served"], "live"):
        for extra in ({"Range": "bytes=99999999-"}, {"If-Match": '"other"'}):
            evidence.add(f"{extra} with {place}", service.get(path, {**headers, **extra}))
        evidence.add(f"DELETE with {place}", service.get(path, headers, "DELETE"))


def _requests(infra_env_id: str, version: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield requests of an image with a credential in each place: query, path and header field."""
    image = f"/images/{infra_env_id}?version={version}&type=full-iso"
    yield "query_api_key", f"{image}&api_key={secret('query_api_key')}", {}
    yield "query_image_token", f"{image}&image_token={secret('query_image_token')}", {}
    yield "authorization", image, {"Authorization": f"Bearer {secret('authorization')}"}
    for place, route in (("path_api_key", "byapikey"), ("path_token", "bytoken")):
        claims = base64.urlsafe_b64encode(json.dumps({"sub": infra_env_id}).encode()).decode().rstrip("=")
        yield place, f"/{route}/e30.{claims}.{secret(place)}/{version}/x86_64/full.iso", {}


def _ask_api_wrongly(service: Service, infra_env_id: str, evidence: Evidence) -> None:
    """Send requests that the stand-in's API refuses."""
    right, wrong = (f"Bearer {secret(place)}" for place in ("token", "wrong_token"))
    json_type = {"Content-Type": "application/json"}
    keyfile = {"network_keyfiles": {"../eth0": f"[wifi-security]\npsk={secret('keyfile')}"}}
    attempts = (
        ("POST", INFRA_ENVS, {"Authorization": wrong, **json_type}, _BODY),
        ("POST", INFRA_ENVS, {"Authorization": right, "Content-Type": "text/plain"}, _BODY),
        ("POST", INFRA_ENVS, {"Authorization": right, **json_type}, _BODY),
        ("POST", INFRA_ENVS, {"Authorization": right, **json_type}, _BODY[:-1]),
        ("POST", INFRA_ENVS, {"Authorization": right, **json_type}, json.dumps(keyfile).encode()),
        ("PUT", f"{INFRA_ENVS}/{infra_env_id}", {"Authorization": right, **json_type}, _BODY),
        ("GET", f"/nothing?api_key={secret('query_api_key')}", {"Authorization": right}, None),
    )
    for number, (method, path, headers, body) in enumerate(attempts):
        answer = fetch(service.api_url + path, method, headers=headers, body=body)
        assert answer.status >= 400
        evidence.add(f"attempt {number}", answer)


def _ask_badly(url: str, evidence: Evidence) -> None:
    """Send malformed and truncated requests with secrets in them."""
    target, field = secret("query_api_key").encode(), secret("authorization").encode()
    line = b"GET /images/x?api_key=" + target
    head = line + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + field
    for number, request in enumerate(
        (
            target + b"\r\n\r\n",
            line + b"\r\n\r\n",
            line + b" HTTP/1.1\r\n\r\n",
            line + b" HTTP/3.0\r\nHost: x\r\n\r\n",
            line + b"#" + target + b"\xff HTTP/1.1\r\nHost: x\r\n\r\n",
            head + b"\0\r\n\r\n",
            head + b"\r\n" + field + b"\r\n\r\n",
            head + b"\r\nTransfer-Encoding: " + field + b"\r\n\r\n",
            head + b"\r\nContent-Length: " + field + b"\r\n\r\n",
            head + b"\r\nContent-Length: 64\r\n\r\n" + field,
            head + b"\r\nExpect: " + field + b"\r\n\r\n",
            head + b"\r\nX-Request-ID: \x01\r\nRange: " + field * 2000 + b"\r\n\r\n",
            line + target * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            head,
        )
    ):
        evidence.found[f"bad request {number}"] = _exchange(url, request)


def _exchange(url: str, request: bytes) -> bytes:
    """Send bytes, and read to the end of the connection."""
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), _SOCKET_SECONDS) as connection:
        connection.sendall(request)
        with suppress(OSError):  # the server may have reset the connection already
            connection.shutdown(socket.SHUT_WR)
        try:
            while block := connection.recv(65536):
                received += block
        except ConnectionResetError:
            pass
    return received


def _files(directory: Path) -> dict[str, bytes]:
    """Yield all files below a directory."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}

"""Real registries of a test's own: Debian's docker-registry (distribution), and crane's."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import ssl
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import attrs
import jwt
import trustme
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from tests.acceptance.clients import needs_client
from tests.ports import free_port, wait_for_port
from tests.registry_origin import OCI_MANIFEST, PASSWORD, RAW, TITLE, USER, digest_of
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.server.catalog.origin import ReceivedRequest

# Of PASSWORD, by bcrypt, the only algorithm that docker-registry knows.
_HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuv4Dhxq1Q097dYC8fLEWNt/dNBl27Qha\n"
_ISSUER = "tests"
TOKEN_SECONDS = 60


@attrs.frozen
class RegistryServer:
    """A running registry.

    Args:
        port: on 127.0.0.1.
        ca_file: of its certificate; None: it speaks plain HTTP.
        place: returns the path at which it has the blob of a digest, for a file that is put there.
        token_requests: those that its token server got.
        authorization: of pushes.
    """

    port: int
    place: Callable[[str, str], Path]
    ca_file: Path | None = None
    token_requests: list[ReceivedRequest] = attrs.field(factory=list)
    authorization: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def push(self, repository: str, tag: str, files: Mapping[str, bytes | Path]) -> str:
        """Push an artifact with a layer for each file; return its digest.

        Args:
            files: by their titles. A path becomes a link to the file, under a digest that is not its own: to
                hash gigabytes takes longer than what tests do with them, and ranges are not compared with it.
        """
        layers = []
        for name, content in files.items():
            digest, size = self._push_blob(repository, content)
            layers.append({"mediaType": RAW, "digest": digest, "size": size, "annotations": {TITLE: name}})
        empty, size = self._push_blob(repository, b"{}")
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": empty, "size": size}
        manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers}
        content = json.dumps(manifest).encode()
        self._request(
            "PUT", f"/v2/{repository}/manifests/{tag}", content, {"Content-Type": OCI_MANIFEST}, 201
        )
        return digest_of(content)

    def _push_blob(self, repository: str, content: bytes | Path) -> tuple[str, int]:
        if not isinstance(content, bytes):  # a sparse file stays sparse
            digest = hashlib.sha256(str(content).encode()).hexdigest()
            path = self.place(repository, digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(content)
            return f"sha256:{digest}", content.stat().st_size
        digest, size = digest_of(content), len(content)
        location = self._request("POST", f"/v2/{repository}/blobs/uploads/", b"", {}, 202)
        target = "/" + location.partition("://")[2].partition("/")[2] if "://" in location else location
        target += ("&" if "?" in target else "?") + f"digest={digest}"
        fields = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._request("PUT", target, content, fields, 201)
        return digest, size

    def _request(self, method: str, path: str, body: object, fields: Mapping[str, str], status: int) -> str:
        if self.ca_file is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
        else:
            context = ssl.create_default_context(cafile=self.ca_file)
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
        try:
            connection.request(method, path, body, {**fields, **self.authorization})  # type: ignore[arg-type]
            response = connection.getresponse()
            assert response.status == status, (method, path, response.status, response.read())
            response.read()
            return response.headers.get("Location", "")
        finally:
            connection.close()


@contextmanager
def running_docker_registry(directory: Path, auth: str = "") -> Iterator[RegistryServer]:
    """Run Debian's docker-registry until the block ends.

    Args:
        directory: of its files.
        auth: ``basic`` or ``token``, which need TLS; empty: everybody may read and write, by plain HTTP.
    """
    program, port = needs_client("docker-registry"), free_port()
    stored = directory / "blobs" / "docker" / "registry" / "v2"

    def place(repository: str, digest: str) -> Path:
        link = stored / "repositories" / repository / "_layers" / "sha256" / digest / "link"
        link.parent.mkdir(parents=True)
        link.write_text(f"sha256:{digest}")
        return stored / "blobs" / "sha256" / digest[:2] / digest / "data"

    lines = [
        "version: 0.1",
        "log: {level: error}",
        f"storage: {{filesystem: {{rootdirectory: {directory / 'blobs'}}}}}",
        f"http: {{addr: '127.0.0.1:{port}', secret: tests",
    ]
    ca_file, authorization = None, {}
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    with ExitStack() as stack:
        requests: list[ReceivedRequest] = []
        if auth:
            ca_file, key, certificate = (directory / name for name in ("ca.crt", "server.key", "server.pem"))
            authority.cert_pem.write_to_path(ca_file)
            leaf.private_key_pem.write_to_path(key)
            certificate.write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
            lines[-1] += f", tls: {{certificate: {certificate}, key: {key}}}"
        lines[-1] += "}"
        if auth == "basic":
            (directory / "htpasswd").write_text(_HTPASSWD)
            lines.append(f"auth: {{htpasswd: {{realm: tests, path: {directory / 'htpasswd'}}}}}")
            authorization = {"Authorization": f"Basic {_basic()}"}
        if auth == "token":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            leaf.configure_cert(context)
            tokens = stack.enter_context(running(context))
            requests = tokens.requests
            issue = _TokenIssuer(leaf)
            tokens.serve("/token", issue.reply)
            lines.append(
                f"auth: {{token: {{realm: '{tokens.url('/token')}', service: tests, issuer: {_ISSUER},"
                f" rootcertbundle: {ca_file}}}}}"
            )
            authorization = {"Authorization": f"Bearer {issue.token('push,pull')}"}
        configuration = directory / "config.yml"
        configuration.write_text("\n".join(lines))
        process = stack.enter_context(
            subprocess.Popen(
                [program, "serve", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        stack.callback(process.kill)
        wait_for_port(port, process)
        yield RegistryServer(port, place, ca_file, requests, authorization)


@contextmanager
def running_crane_registry(directory: Path) -> Iterator[RegistryServer]:
    """Run crane's registry until the block ends; it answers 416 to a range without an end."""
    port = free_port()
    command = [needs_client("crane"), "registry", "serve", "--address", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*command, "--disk", str(directory)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for_port(port, process)
            yield RegistryServer(port, lambda _, digest: directory / "sha256" / digest)
        finally:
            process.kill()


def _basic() -> str:
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@attrs.frozen
class _TokenIssuer:
    """Issues tokens of the form that docker-registry verifies, to `USER`.

    Args:
        leaf: key and certificate that sign them.
    """

    leaf: trustme.LeafCert

    def reply(self, request: ReceivedRequest) -> Reply:
        """Return the reply to a request for a token."""
        if request.headers["Authorization"] != f"Basic {_basic()}":
            return Reply(status=401)
        (scope,) = parse_qs(urlsplit(request.target).query)["scope"]
        content = {"token": self.token(scope.rpartition(":")[2]), "expires_in": TOKEN_SECONDS}
        return Reply(json.dumps(content).encode())

    def token(self, actions: str, repository: str = "tests/iso") -> str:
        """Return a token for a repository."""
        chain = [load_pem_x509_certificate(each.bytes()) for each in self.leaf.cert_chain_pems]
        now = int(time.time())
        access = [{"type": "repository", "name": repository, "actions": actions.split(",")}]
        claims = {"iss": _ISSUER, "sub": USER, "aud": "tests", "exp": now + TOKEN_SECONDS, "nbf": now - 5}
        encoded = [base64.b64encode(each.public_bytes(Encoding.DER)).decode() for each in chain]
        return jwt.encode(
            {**claims, "iat": now, "jti": "1", "access": access},
            self.leaf.private_key_pem.bytes(),
            "ES256",
            {"x5c": encoded},
        )

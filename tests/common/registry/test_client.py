from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.reloaded import Reloaded
from image_service.common.http.watch import RequestLimits
from image_service.common.registry.client import RegistryClient
from image_service.common.registry.connections import RegistryCall, RegistryOptions
from image_service.common.registry.counts import MAX_REPOSITORIES, RegistryCounts
from image_service.common.registry.credentials import CredentialStore, parse_auth_file
from image_service.common.registry.errors import RegistryFailed
from image_service.common.registry.mirrors import Endpoint, parse_registries_conf
from image_service.common.registry.references import parse_registry_url
from image_service.core.errors import FormatError
from tests.registry_origin import PASSWORD, RAW, RegistryOrigin, auth_entry, digest_of
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from image_service.common.registry.client import ResolvedImage
    from tests.server.catalog.origin import ReceivedRequest

CONTENT = bytes(range(256)) * 1024
STALL_SECONDS = 2.0


@attrs.frozen
class Reader:
    """A client of registries and what it reads with."""

    client: RegistryClient
    call: RegistryCall = attrs.field(
        factory=lambda: RegistryCall(RequestLimits(stall_seconds=STALL_SECONDS), Interruption())
    )

    @classmethod
    def of(
        cls, *hosts: str, conf: str = "", auths: Mapping[str, object] | None = None, max_idle: int = 0
    ) -> Reader:
        """Make a client to which these hosts are insecure."""
        credentials, rules = CredentialStore(), parse_registries_conf(conf)
        if auths is not None:
            credentials = parse_auth_file(json.dumps({"auths": auths}))
        options = RegistryOptions(
            Reloaded([], lambda: credentials),
            Reloaded([], lambda: rules),
            insecure=frozenset(hosts),
            make_current=Reloaded,
        )
        return cls(RegistryClient(options, max_idle))

    def resolve(self, url: str, architecture: str = "x86_64") -> ResolvedImage:
        return self.client.resolve(parse_registry_url(url).reference, architecture, self.call)

    def read(self, url: str, start: int = 0) -> bytes:
        image = self.resolve(url)
        layer = image.manifest.find_file(parse_registry_url(url).path)
        assert layer is not None
        return b"".join(self.client.read_blob(image.reference, layer, self.call, start))


@pytest.fixture
def origin() -> Iterator[Origin]:
    """A server."""
    with running() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Origin]:
    """Another server: a CDN, or a mirror."""
    with running() as made:
        yield made


@pytest.fixture
def registry(origin: Origin) -> RegistryOrigin:
    """A registry with one artifact."""
    made = RegistryOrigin(origin)
    made.manifest([(CONTENT, RAW)])
    return made


def targets(origin: Origin) -> list[str]:
    return [request.target for request in origin.requests]


def test_artifact_is_read_by_tag_and_by_digest(registry: RegistryOrigin) -> None:
    reader = Reader.of(registry.host)
    digest = reader.resolve(registry.url()).reference.digest
    assert reader.read(registry.url()) == reader.read(registry.url(f"@{digest}")) == CONTENT
    assert reader.read(registry.url(), start=1000) == CONTENT[1000:]


def test_index_is_followed_by_architecture(registry: RegistryOrigin) -> None:
    images = {name: registry.manifest([(name.encode(), RAW)], tag=name) for name in ("amd64", "arm64")}
    registry.index(images)
    reader = Reader.of(registry.host)
    assert reader.resolve(registry.url(), "aarch64").reference.digest == images["arm64"]
    with pytest.raises(FormatError, match="nothing for linux/s390x; it has linux/amd64, linux/arm64"):
        reader.resolve(registry.url(), "s390x")


def test_index_within_an_index_is_refused(registry: RegistryOrigin) -> None:
    inner = registry.index({"amd64": registry.manifest([(CONTENT, RAW)])}, tag="inner")
    registry.index({"amd64": inner})
    with pytest.raises(FormatError, match="another index"):
        Reader.of(registry.host).resolve(registry.url())


def test_moved_tag_is_seen(registry: RegistryOrigin) -> None:
    reader = Reader.of(registry.host)
    assert reader.read(registry.url()) == CONTENT
    registry.manifest([(b"newer", RAW)])
    assert reader.read(registry.url()) == b"newer"


@pytest.mark.parametrize("is_stated", [True, False])
def test_manifest_with_another_digest_is_refused(registry: RegistryOrigin, *, is_stated: bool) -> None:
    digest = digest_of(b"what was asked for")
    fields = {"Docker-Content-Digest": digest} if is_stated else {}
    reply = Reply(b'{"schemaVersion": 2, "layers": []}', headers=fields)
    name = "latest" if is_stated else digest
    registry.origin.replies[f"/v2/{registry.repository}/manifests/{name}"] = [reply]
    with pytest.raises(RegistryFailed, match=f"the digest of manifest {digest} is sha256:"):
        Reader.of(registry.host).resolve(registry.url(":latest" if is_stated else f"@{digest}"))


def test_registry_without_tls_must_be_named(registry: RegistryOrigin) -> None:
    with pytest.raises(RegistryFailed, match="may not speak HTTPS"):
        Reader.of().resolve(registry.url())
    assert targets(registry.origin) == []


def test_insecure_registry_whose_tls_fails_is_not_taken_for_one_without(registry: RegistryOrigin) -> None:
    """Servers that speak TLS answer 400 to requests in plain HTTP."""
    registry.origin.replies["/v2/"] = [Reply(status=400)]
    with pytest.raises(RegistryFailed, match="may not speak HTTPS"):
        Reader.of(registry.host).resolve(registry.url())
    registry.origin.replies["/v2/"] = [Reply(status=401)]
    assert Reader.of(registry.host).read(registry.url()) == CONTENT


def test_name_of_a_host_in_a_redirect_is_no_path(
    registry: RegistryOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "certs.d").mkdir()
    (tmp_path / "evil.crt").write_text("no PEM")
    reader = Reader.of(registry.host)
    monkeypatch.setattr(
        reader.client._connections,
        "_options",
        attrs.evolve(reader.client._options, certs_dirs=(tmp_path / "certs.d",)),
    )
    registry.spoil = lambda *_: Reply(status=307, headers={"Location": "https://../layer"})
    with pytest.raises(RegistryFailed) as caught:
        reader.read(registry.url())
    assert "evil" not in caught.value.reason


# Tokens.


def test_token_is_fetched_once_and_again_when_it_is_refused(registry: RegistryOrigin) -> None:
    registry.needs_token = True
    reader = Reader.of(registry.host, auths={registry.host: auth_entry()})
    assert reader.read(registry.url()) == CONTENT
    assert registry.tokens == 1
    registry.tokens += 1  # the one that was issued is not valid any more
    assert reader.read(registry.url(), start=5) == CONTENT[5:]
    assert registry.tokens == 3


def test_token_that_ended_in_the_middle_of_a_read_is_renewed(registry: RegistryOrigin) -> None:
    registry.needs_token = True

    def spoil(_: ReceivedRequest, reply: Reply) -> Reply:
        registry.tokens += 1
        return attrs.evolve(reply, body=reply.body[:70_000], promised=len(reply.body))

    registry.spoil = spoil
    reader = Reader.of(registry.host, auths={registry.host: auth_entry()})
    assert reader.read(registry.url()) == CONTENT
    assert registry.tokens >= 6


def test_token_is_not_used_after_its_end(registry: RegistryOrigin) -> None:
    registry.needs_token, registry.token_answer = True, {"expires_in": 1e-9}
    reader = Reader.of(registry.host, auths={registry.host: auth_entry()})
    reader.resolve(registry.url())
    before = len(registry.origin.requests)
    attrs.evolve(reader).client._authorization._known.clear()
    reader.resolve(registry.url())
    assert next(each.headers["Authorization"] for each in registry.origin.requests[before:]) is None


@pytest.mark.parametrize(
    ("auths", "reason"),
    [
        (None, "its token server answered a request without credentials with status 401"),
        ({"elsewhere": auth_entry()}, "a request without credentials"),
        (
            {"HOST": auth_entry(password="wrong-secret")},
            "its token server answered its credentials with status 401",
        ),
        ({"HOST/coreos/iso": auth_entry(), "HOST": auth_entry("x", "wrong-secret")}, None),
        ({"HOST/coreos": auth_entry(), "HOST/core": auth_entry("x", "wrong-secret")}, None),
    ],
)
def test_credentials_by_prefix(
    registry: RegistryOrigin, auths: Mapping[str, object] | None, reason: str | None
) -> None:
    registry.needs_token = True
    if auths is not None:
        auths = {name.replace("HOST", registry.host): entry for name, entry in auths.items()}
    reader = Reader.of(registry.host, auths=auths)
    if reason is None:
        assert reader.read(registry.url()) == CONTENT
        return
    with pytest.raises(RegistryFailed, match=reason) as caught:
        reader.read(registry.url())
    assert "secret" not in caught.value.reason
    assert PASSWORD not in caught.value.reason


def test_valid_token_that_is_refused_ends_the_request(registry: RegistryOrigin) -> None:
    challenge = f'Bearer realm="{registry.origin.url("/token")}"'
    path = f"/v2/{registry.repository}/manifests/latest"
    registry.origin.replies[path] = [Reply(status=401, headers={"WWW-Authenticate": challenge})]
    reader = Reader.of(registry.host, auths={registry.host: auth_entry()})
    with pytest.raises(RegistryFailed, match="refused what it asked for with status 401"):
        reader.resolve(registry.url())
    assert registry.tokens == 1


def test_basic(registry: RegistryOrigin) -> None:
    path = f"/v2/{registry.repository}/manifests/latest"
    replies = registry.origin.replies
    replies[path] = [Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'}), *replies[path]]
    assert Reader.of(registry.host, auths={registry.host: auth_entry()}).read(registry.url()) == CONTENT
    assert registry.origin.requests[-1].headers["Authorization"].startswith("Basic ")
    replies[path] = [Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})]
    with pytest.raises(RegistryFailed, match="needs credentials, and there are none for it"):
        Reader.of(registry.host).resolve(registry.url())


def test_identity_token_is_exchanged(registry: RegistryOrigin) -> None:
    registry.needs_token = True
    reader = Reader.of(registry.host, auths={registry.host: {"identitytoken": "identity-of-tests"}})
    with pytest.raises(RegistryFailed, match="its token server answered its credentials with status 401"):
        reader.resolve(registry.url())  # the tests' server takes passwords only
    assert registry.origin.requests[-1].method == "POST"


# Redirects.


def redirect_blobs(registry: RegistryOrigin, other: Origin, query: str = "signature=secret") -> None:
    def spoil(request: ReceivedRequest, _: Reply) -> Reply:
        path = request.target.replace("/v2/", "/cdn/")
        return Reply(status=307, headers={"Location": f"{other.url(path)}?{query}"})

    registry.spoil = spoil
    for digest, content in registry.blobs.items():
        path = f"/cdn/{registry.repository}/blobs/{digest}"

        def serve(request: ReceivedRequest, content: bytes = content) -> Reply:
            if not request.target.endswith(query):
                return Reply(status=403)
            first = int((request.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            status = 206 if request.headers["Range"] else 200
            fields = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
            return Reply(content[first:], status, fields)

        other.replies[path] = [serve]


def test_redirect_to_another_host_gets_no_credentials(registry: RegistryOrigin, other: Origin) -> None:
    registry.needs_token = True
    redirect_blobs(registry, other)
    reader = Reader.of(registry.host, auths={registry.host: auth_entry()})
    assert reader.read(registry.url()) == CONTENT
    assert other.requests[0].headers["Authorization"] is None
    before = len(registry.origin.requests)
    assert reader.read(registry.url(), start=9) == CONTENT[9:]
    assert [each for each in targets(registry.origin)[before:] if "/blobs/" in each] == []


def test_link_that_has_expired_is_resolved_again(registry: RegistryOrigin, other: Origin) -> None:
    redirect_blobs(registry, other)
    reader = Reader.of(registry.host)
    assert reader.read(registry.url()) == CONTENT
    redirect_blobs(registry, other, "signature=newer")
    assert reader.read(registry.url()) == CONTENT


def test_host_that_a_redirect_names_is_in_the_reason_without_its_query(
    registry: RegistryOrigin, other: Origin
) -> None:
    redirect_blobs(registry, other)
    gone = other.port
    other.close()
    with pytest.raises(RegistryFailed, match=f"to http://127.0.0.1:{gone}: Connection refused") as caught:
        Reader.of(registry.host).read(registry.url())
    assert "secret" not in caught.value.reason


# Faults of bodies.


def test_body_that_is_cut_is_continued(registry: RegistryOrigin) -> None:
    registry.spoil = lambda _, reply: attrs.evolve(reply, body=reply.body[:100_000], promised=len(reply.body))
    assert Reader.of(registry.host).read(registry.url()) == CONTENT
    ranges = [each.headers["Range"] for each in registry.origin.requests if "/blobs/" in each.target]
    last = len(CONTENT) - 1
    assert ranges == [None, f"bytes=100000-{last}", f"bytes=200000-{last}"]  # each has an end


def test_registry_without_ranges_is_read_from_the_beginning(registry: RegistryOrigin) -> None:
    cuts = iter([10, 100_000])

    def spoil(_: ReceivedRequest, reply: Reply) -> Reply:
        body = CONTENT[: next(cuts, len(CONTENT))]
        return attrs.evolve(reply, status=200, headers={}, body=body, promised=len(CONTENT))

    registry.spoil = spoil
    assert Reader.of(registry.host).read(registry.url()) == CONTENT


def test_body_without_a_length_is_read(registry: RegistryOrigin) -> None:
    registry.spoil = lambda _, reply: attrs.evolve(reply, promised=-1)
    assert Reader.of(registry.host).read(registry.url()) == CONTENT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": 404}, "answered with status 404 to blob sha256:"),
        ({"status": 416}, "answered with status 416 to blob sha256:"),
        ({"status": 429, "headers": {"Retry-After": "77"}}, "answered with status 429"),
        ({"headers": {"Content-Encoding": "gzip"}}, "content coding"),
        ({"body": b"short"}, f"announced 5 bytes, the manifest {len(CONTENT)}"),
        ({"body": CONTENT + b"more", "promised": -1}, f"more than the {len(CONTENT)} bytes"),
        ({"body": b"", "promised": len(CONTENT)}, f"after 0 of {len(CONTENT)} bytes"),
        ({"status": 206, "headers": {"Content-Range": "bytes 1-5/6"}}, "answered with Content-Range"),
        ({"status": 206}, "answered with Content-Range ''"),
    ],
)
def test_faults_are_named(registry: RegistryOrigin, change: dict[str, Any], reason: str) -> None:
    registry.spoil = lambda _, reply: attrs.evolve(reply, **change)
    with pytest.raises(RegistryFailed, match=reason) as caught:
        Reader.of(registry.host).read(registry.url())
    assert registry.host in caught.value.reason
    assert registry.repository in caught.value.reason
    assert caught.value.retry_after == ("77" if change.get("status") == 429 else "")


def test_too_slow_registry_is_given_up(registry: RegistryOrigin) -> None:
    registry.spoil = lambda _, reply: attrs.evolve(reply, body=b"", promised=len(CONTENT), hold=True)
    reader = Reader.of(registry.host)
    quick = attrs.evolve(reader, call=RegistryCall(RequestLimits(stall_seconds=0.1), Interruption()))
    with pytest.raises(RegistryFailed, match="timed out, after 0 of"):
        quick.read(registry.url())


# Mirrors.


def mirror_conf(registry: RegistryOrigin, other: RegistryOrigin, more: str = "") -> str:
    return (
        f'[[registry]]\nlocation = "{registry.host}"\ninsecure = true\n'
        f'[[registry.mirror]]\nlocation = "{other.host}/copies"\ninsecure = true\n{more}'
    )


def test_mirror_is_asked_first_and_the_registry_after_it(registry: RegistryOrigin, other: Origin) -> None:
    copies = RegistryOrigin(other, f"copies/{registry.repository}")
    reader = Reader.of(conf=mirror_conf(registry, copies))
    assert reader.read(registry.url()) == CONTENT  # the mirror has nothing yet
    assert [status for status in targets(other) if "manifests" in status]
    copies.manifest([(CONTENT, RAW)])
    before = len(registry.origin.requests)
    assert reader.read(registry.url()) == CONTENT
    assert targets(registry.origin)[before:] == []


def test_mirror_that_is_down_is_asked_last(registry: RegistryOrigin, other: Origin) -> None:
    copies = RegistryOrigin(other, f"copies/{registry.repository}")
    reader = Reader.of(conf=mirror_conf(registry, copies))
    other.close()
    for _ in range(2):
        assert reader.read(registry.url()) == CONTENT
    registry.origin.close()
    with pytest.raises(RegistryFailed) as caught:
        reader.read(registry.url())
    assert registry.host in caught.value.reason.split("; ")[0]
    assert copies.host in caught.value.reason.split("; ")[1]


def test_credentials_are_those_of_the_mirror(registry: RegistryOrigin, other: Origin) -> None:
    copies = RegistryOrigin(other, f"copies/{registry.repository}", needs_token=True)
    copies.manifest([(CONTENT, RAW)])
    auths = {f"{copies.host}/copies": auth_entry(), registry.host: auth_entry("x", "y")}
    assert Reader.of(conf=mirror_conf(registry, copies), auths=auths).read(registry.url()) == CONTENT
    assert targets(registry.origin) == []


def test_blocked_registry_is_not_asked(registry: RegistryOrigin) -> None:
    reader = Reader.of(conf=f'[[registry]]\nlocation = "{registry.host}"\nblocked = true')
    with pytest.raises(RegistryFailed, match=r"registries\.conf blocks"):
        reader.resolve(registry.url())
    assert targets(registry.origin) == []


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (None, "answered"),
        (Reply(status=403), "unauthorized"),
        (Reply(status=404), "absent"),
        (Reply(status=429, headers={"Retry-After": "9"}), "busy"),
        (Reply(status=500), "failed"),
        (Reply(b"{}", headers={"Docker-Content-Digest": digest_of(CONTENT)}), "wrong"),
        (Reply(b"{}", promised=5), "unreachable"),
    ],
)
def test_requests_are_counted_by_outcome(registry: RegistryOrigin, reply: Reply | None, outcome: str) -> None:
    registry.manifest([(CONTENT, RAW)])
    if reply is not None:
        registry.origin.replies[f"/v2/{registry.repository}/manifests/latest"] = [reply]
    reader = Reader.of(registry.host)
    with suppress(RegistryFailed):
        reader.resolve(registry.url())
    assert reader.client._options.counts.read() == {(registry.host, registry.repository, outcome): 1}


def test_repositories_that_are_counted_are_limited() -> None:
    counts = RegistryCounts()
    for number in range(3 * MAX_REPOSITORIES):
        counts.add(Endpoint("registry.example", f"image{number}"))
    found = counts.read()
    assert len(found) == MAX_REPOSITORIES + 1
    assert found["other", "other", "answered"] == 2 * MAX_REPOSITORIES

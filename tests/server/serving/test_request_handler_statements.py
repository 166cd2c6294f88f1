"""Signed statements: asked for by a URL of their own, as digests are."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from twisted.internet.defer import succeed

from image_service.core.errors import Forbidden
from image_service.core.images.reference import Kind
from image_service.core.provenance.dsse import (
    BUNDLE,
    SigningKeys,
    load_signing_key,
    load_verifying_keys,
    open_bundle,
)
from image_service.core.provenance.statement import Purpose, Statement
from image_service.core.provenance.statement_json import parse_statement
from image_service.core.provenance.undo import undo
from image_service.server.catalog.build_catalog import BaseOrigin
from image_service.server.serving.digests import TIMEOUT_SECONDS
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.formats.filesystems.iso_builder import CREATED
from tests.core.images.building import base_image
from tests.server.http.reading import body_of, fields_of, problem_of
from tests.server.serving.asking import TARGET, Service, answers_of
from tests.server.serving.test_request_handler_digests import INITRD, KERNEL, HeldHashes
from tests.server.snapshots.doubles import CONFIG, ID, TTL_SECONDS
from tests.server.snapshots.doubles import world as make_world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.snapshots.doubles import World

STATEMENT = f"{TARGET}.intoto.json"
KEYS = "/.well-known/image-service-signing-keys.pem"
MINIMAL = TARGET.replace("full.iso", "minimal.iso")
KEYS_OF_TWO = [
    SigningKeys(load_signing_key(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())))
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()))
]


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose base image has a recipe of its minimal ISO, and whose threads work at once."""
    with make_world() as made, base_image(live_iso_with_minimal()) as base:
        made.catalog.images["4.20", "x86_64", Kind.FULL_ISO] = base
        made.images = made.make_images(lambda work: succeed(work()))
        yield made


@pytest.fixture
def service(world: World) -> Service:
    return Service(world, keys=KEYS_OF_TWO[0])


def read_statement(service: Service, target: str) -> tuple[Statement, bytes]:
    """Return the statement at a URL, whose signature the published key verifies, and its bundle."""
    answer = service.get(target)
    assert answer.response.status == 200, problem_of(answer.response)
    bundle = body_of(answer.response)
    keys = load_verifying_keys(body_of(service.get(KEYS).response))
    return parse_statement(open_bundle(bundle, keys)), bundle


@pytest.mark.parametrize(
    ("target", "of"),
    [
        (STATEMENT, TARGET),
        (f"/images/{ID}?version=4.20&type=full&statement=intoto", TARGET),
        (f"{MINIMAL}.intoto.json", MINIMAL),
        (f"{INITRD}&statement=intoto", INITRD),
        (f"{KERNEL}.intoto.json", KERNEL),
        (f"{TARGET.replace('full.iso', 'config.iso')}.intoto.json", TARGET.replace("full.iso", "config.iso")),
    ],
)
def test_a_statement_is_of_the_image_of_its_url(service: Service, target: str, of: str) -> None:
    statement, _ = read_statement(service, target)
    answer = service.get(of)
    content = body_of(answer.response)
    assert (statement.sha256, statement.length) == (sha256(content).hexdigest(), len(content))
    assert undo(lambda at, count: content[at : at + count], len(content), statement).faults == ()
    base = service.world.catalog.find_base_image("4.20", "x86_64", Kind.FULL_ISO)
    assert (statement.base.sha256, statement.base.length) == (base.sha256, base.file.size)
    assert statement.config_sha256 == (None if of == KERNEL else sha256(CONFIG).hexdigest())
    assert fields_of(service.get(target).response)["image-etag"] == fields_of(answer.response)["etag"]


def test_purposes_of_excerpts(service: Service) -> None:
    kernel, _ = read_statement(service, f"{KERNEL}.intoto.json")
    assert {each.purpose for each in kernel.excerpt} == {Purpose.BASE}
    assert kernel.time == CREATED
    initrd, _ = read_statement(service, f"{INITRD}&statement=intoto")
    assert [each.purpose for each in initrd.excerpt][-1] is Purpose.IGNITION
    minimal, _ = read_statement(service, f"{MINIMAL}.intoto.json")
    assert {Purpose.IGNITION, Purpose.BASE} <= {each.purpose for each in minimal.excerpt}


def test_a_statement_names_origin_and_signature_of_its_base(world: World, tmp_path: Path) -> None:
    signature = tmp_path / "base.iso.sig"
    signature.write_bytes(b"signature")
    origin = BaseOrigin("https://user:secret@mirror.example/live.iso?token=secret", signature)
    statement, bundle = read_statement(Service(world, keys=KEYS_OF_TWO[0], origin=origin), STATEMENT)
    assert statement.base.origin == "https://mirror.example/live.iso"
    assert statement.base.signature == b"signature"
    assert b"secret" not in bundle


@pytest.mark.parametrize("keys", KEYS_OF_TWO, ids=["ed25519", "p256"])
def test_a_bundle_is_the_same_from_each_replica_and_after_a_restart(world: World, keys: SigningKeys) -> None:
    services = [Service(world, keys=keys) for _ in range(3)]
    bundles = {read_statement(each, target)[1] for each in services for target in (STATEMENT, STATEMENT)}
    assert len(bundles) == 1
    world.clock.advance(TTL_SECONDS + 1)
    assert read_statement(services[0], STATEMENT)[1] in bundles, (
        "an unchanged infra-env has the same snapshot"
    )


def test_a_bundle_is_served_as_other_resources_are(service: Service) -> None:
    answer = service.get(STATEMENT)
    fields, content = fields_of(answer.response), body_of(answer.response)
    assert fields["content-type"] == BUNDLE
    assert fields["content-disposition"] == f'attachment; filename="{ID}-discovery.iso.intoto.json"'
    assert fields["cache-control"] == "private, no-cache"
    assert (answer.subject.infra_env, answer.subject.kind) == (ID, "full-iso intoto")
    head = service.get(STATEMENT, "HEAD").response
    assert (fields_of(head), body_of(head)) == (fields, b"")
    part = service.get(STATEMENT, range="bytes=5-9").response
    assert (part.status, body_of(part)) == (206, content[5:10])
    assert service.get(STATEMENT, if_none_match=fields["etag"]).response.status == 304
    public = service.get(f"{KERNEL}.intoto.json")
    assert fields_of(public.response)["cache-control"] == "public, no-cache"


def test_a_statement_follows_the_image(service: Service) -> None:
    before, _ = read_statement(service, STATEMENT)
    service.world.assisted.config = b'{"ignition": {"version": "3.3.0"}}'
    service.world.clock.advance(TTL_SECONDS + 1)
    after, _ = read_statement(service, STATEMENT)
    assert after.sha256 != before.sha256
    assert after.config_sha256 == sha256(b'{"ignition": {"version": "3.3.0"}}').hexdigest()


def test_a_new_key_signs_the_same_payload_and_the_old_one_stays_listed(service: Service) -> None:
    _, before = read_statement(service, STATEMENT)
    old, new = KEYS_OF_TWO
    service.keys = SigningKeys(new.signer, (old.signer.public, new.signer.public))
    _, after = read_statement(service, STATEMENT)
    listed = load_verifying_keys(body_of(service.get(KEYS).response))
    assert [key.pem for key in listed] == [new.pem, old.pem]
    assert open_bundle(after, listed[:1]) == open_bundle(before, listed[1:])


def test_a_statement_needs_the_credentials_of_the_image(service: Service) -> None:
    assert service.get(STATEMENT, authorization="good").response.status == 200
    service.world.assisted.failures["ignition"] = Forbidden("no")
    assert service.get(STATEMENT, authorization="bad").response.status == 403


def test_nothing_is_computed_before_it_is_asked_for_and_then_once(world: World) -> None:
    hashes = HeldHashes()
    service = Service(world, hashes=hashes, keys=KEYS_OF_TWO[0])
    service.get()
    service.get(range="bytes=0-9")
    assert hashes.waiting == []
    for _ in range(2):  # the digest, then the statement
        waiting = answers_of(service.ask(STATEMENT))
        world.clock.advance(TIMEOUT_SECONDS)
        (answer,) = waiting
        assert answer.response.status == 503
        assert int(fields_of(answer.response)["retry-after"]) > 0
        hashes.release()
    for _ in range(2):
        assert service.get(STATEMENT).response.status == 200
    assert hashes.waiting == []


@pytest.mark.parametrize("target", [STATEMENT, f"{KERNEL}.intoto.json", KEYS])
def test_without_a_key_there_are_no_statements(world: World, target: str) -> None:
    hashes = HeldHashes()
    answer = Service(world, hashes=hashes).get(target)
    assert answer.response.status == 404
    assert "SIGNING_KEY_FILE is not set" in str(problem_of(answer.response)["detail"])
    assert (hashes.waiting, world.assisted.calls) == ([], [])


def test_a_script_has_no_statement(service: Service) -> None:
    answer = service.get(f"/images/{ID}/ipxe?version=4.20&statement=intoto")
    assert problem_of(answer.response)["detail"] == "an iPXE script has no statement"

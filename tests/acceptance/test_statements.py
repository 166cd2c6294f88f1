"""Signed statements of a running service, verified by openssl, securesystemslib, cosign and our command."""

from __future__ import annotations

import base64
import importlib
import json
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from image_service.cli import main
from image_service.core.provenance.dsse import encode_pre_authentication, load_verifying_keys, open_bundle
from tests.acceptance.clients import missing, run_client
from tests.acceptance.service import SERVE, os_image, run_service
from tests.acceptance.test_reload import reload
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.softhsm import PIN, make_token
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

VERSION = "44.1"
CONFIG = {"ignition": {"version": "3.4.0"}}
KEYS = "/.well-known/image-service-signing-keys.pem"
PREDICATE = "https://image-service.invalid/boot-image/v1"
TRUSTED_ROOT = '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'
ALGORITHMS = {"p256": ("EC", "-pkeyopt", "ec_paramgen_curve:P-256"), "ed25519": ("ed25519",)}


def make_key(directory: Path, algorithm: str) -> Path:
    """Make a key as docs/provenance.md does."""
    path = directory / f"{algorithm}.key"
    run_client("openssl", "genpkey", "-algorithm", *ALGORITHMS[algorithm], "-out", path)
    path.chmod(0o600)
    return path


def serving(directory: Path, **environment: str) -> AbstractContextManager[Service]:
    """Run the service with a signing key."""
    iso = directory / "live.iso"
    if not iso.exists():
        iso.write_bytes(live_iso_with_minimal())
    return run_service(
        directory,
        [os_image(iso, VERSION)],
        command=(*SERVE, "--standalone"),
        environment=environment,
    )


class Signed:
    """A running service, and what clients keep of it."""

    def __init__(self, service: Service, directory: Path, algorithm: str = "p256") -> None:
        self.service = service
        self.algorithm = algorithm
        self.infra_env = service.register(VERSION, CONFIG, ["ip=dhcp"])
        self.directory = directory
        self.image = f"/byid/{self.infra_env}/{VERSION}/x86_64/full.iso"
        self.keys = self.save("keys.pem", KEYS)

    def save(self, name: str, path: str) -> Path:
        """Save what a path has, and return the file."""
        answer = self.service.get_image(path)
        assert answer.status == 200, answer
        target = self.directory / name
        target.write_bytes(answer.body)
        return target


@pytest.fixture(scope="module", params=["p256", soaked("ed25519")])
def signed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    directory: Path = tmp_path_factory.mktemp("signed")
    with serving(directory, SIGNING_KEY_FILE=str(make_key(directory, request.param))) as service:
        yield Signed(service, directory, request.param)


def test_openssl_accepts_the_bundle(signed: Signed, tmp_path: Path) -> None:
    """The commands of docs/provenance.md."""
    bundle = signed.save("full.iso.intoto.json", f"{signed.image}.intoto.json")
    envelope = json.loads(bundle.read_bytes())["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    message, signature = tmp_path / "message", tmp_path / "signature"
    message.write_bytes(encode_pre_authentication("application/vnd.in-toto+json", payload))
    signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    if signed.algorithm == "p256":
        told = run_client(
            "openssl", "dgst", "-sha256", "-verify", signed.keys, "-signature", signature, message
        )
        assert told == b"Verified OK\n"
    else:
        arguments = (
            "-verify",
            "-pubin",
            "-inkey",
            signed.keys,
            "-rawin",
            "-in",
            message,
            "-sigfile",
            signature,
        )
        run_client("openssl", "pkeyutl", *arguments)


def test_securesystemslib_accepts_the_envelope(signed: Signed) -> None:
    try:
        dsse, signer = (importlib.import_module(f"securesystemslib.{name}") for name in ("dsse", "signer"))
    except ImportError:
        missing("securesystemslib (PyPI)")
    bundle = signed.save("full.iso.intoto.json", f"{signed.image}.intoto.json")
    envelope = dsse.Envelope.from_dict(json.loads(bundle.read_bytes())["dsseEnvelope"])
    key = signer.SSlibKey.from_crypto(load_pem_public_key(signed.keys.read_bytes()))
    key.keyid = ""  # as in the envelope: the library compares both
    assert envelope.verify([key], 1) == {key.keyid: key}
    envelope.payload += b" "
    with pytest.raises(Exception, match="signatures"):
        envelope.verify([key], 1)


def test_a_key_of_a_token_signs(tmp_path: Path) -> None:
    token = make_token(tmp_path)
    token.import_key("statements", "01", make_key(tmp_path, "p256").read_bytes())
    variables = {"SIGNING_KEY_URI": token.uri(object="statements"), **token.variables}
    with serving(tmp_path, **variables) as service:
        kept = Signed(service, tmp_path)
        image, bundle = kept.save("full.iso", kept.image), kept.save("bundle", f"{kept.image}.intoto.json")
        assert main(["verify", str(image), "--statement", str(bundle), "--key", str(kept.keys)]) == 0
    assert PIN not in "".join((tmp_path / name).read_text() for name in ("stdout", "stderr"))


@pytest.mark.soak
def test_cosign_accepts_the_bundle(signed: Signed) -> None:
    """Without a transparency log."""
    image = signed.save("full.iso", signed.image)
    bundle = signed.save("full.iso.intoto.json", f"{signed.image}.intoto.json")
    root = signed.directory / "root.json"
    root.write_text(TRUSTED_ROOT)
    offline = (
        "--insecure-ignore-tlog=true",
        "--new-bundle-format",
        "--trusted-root",
        root,
        "--type",
        PREDICATE,
    )
    arguments = ("verify-blob-attestation", "--key", signed.keys, "--bundle", bundle, *offline)
    run_client("cosign", *arguments, image)
    image.write_bytes(image.read_bytes() + b"?")
    with pytest.raises(AssertionError, match="status 1"):
        run_client("cosign", *arguments, image)


@pytest.mark.parametrize(
    "path",
    [
        "/byid/{id}/{version}/x86_64/full.iso",
        "/byid/{id}/{version}/x86_64/minimal.iso",
        "/images/{id}/pxe-initrd?version={version}",
        "/boot-artifacts/{version}/x86_64/rootfs.img",
    ],
)
def test_verify_fetches_an_image_and_its_statement(
    signed: Signed, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = path.format(id=signed.infra_env, version=VERSION)
    base = signed.directory / "live.iso"
    command = ["verify", signed.service.url + path, "--key", signed.keys, "--base", base, "--json"]
    assert main([str(word) for word in command]) == 0
    verdict = json.loads(capfd.readouterr().out)
    assert (verdict["verified"], verdict["notes"]) == (True, [])
    assert verdict["sha256"] == sha256(signed.service.get_image(path).body).hexdigest()


def test_older_statements_stay_valid_after_a_rotation(tmp_path: Path) -> None:
    """Neither the rotation nor a restart changes the payload; tests/replicas compares whole bundles."""
    key, new = make_key(tmp_path, "p256"), make_key(tmp_path, "ed25519")
    listed = tmp_path / "listed.pem"
    listed.write_bytes(b"".join(run_client("openssl", "pkey", "-in", each, "-pubout") for each in (key, new)))
    variables = {"SIGNING_KEY_FILE": str(key), "SIGNING_RETIRED_KEYS": str(listed)}
    with serving(tmp_path, **variables) as service:
        first = Signed(service, tmp_path)
        before = service.get_image(f"{first.image}.intoto.json").body
        new.replace(key)
        assert reload(service, "reloaded:") == f"reloaded: {key}, {listed} changed"
        public = load_verifying_keys(service.get(KEYS).body)
        rotated = service.get_image(f"{first.image}.intoto.json").body
    with serving(tmp_path, **variables) as service:
        assert service.get_image(f"{first.image}.intoto.json").body == rotated
    assert open_bundle(rotated, public[:1]) == open_bundle(before, public[1:])

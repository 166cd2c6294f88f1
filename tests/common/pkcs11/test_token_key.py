"""Keys of a token of SoftHSM sign as keys in memory do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pkcs11
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from image_service.common.pkcs11.token_key import TokenKey
from image_service.common.pkcs11.token_uri import parse_token_uri
from image_service.core.errors import ConfigurationError, Unavailable
from image_service.core.provenance.dsse import load_signing_key, open_bundle, sign_bundle
from image_service.settings.settings import Settings
from image_service.settings.signing import SigningSettings
from tests.softhsm import PIN, SoftToken, make_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from image_service.core.provenance.dsse import BundleSigner


def pem(key: PrivateKeyTypes) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


P256, ED25519 = pem(ec.generate_private_key(ec.SECP256R1())), pem(ed25519.Ed25519PrivateKey.generate())
KEYS = {"p256": ("01", P256), "ed25519": ("02", ED25519)}
OTHERS = {
    "p384": ("03", pem(ec.generate_private_key(ec.SECP384R1()))),
    "rsa": ("04", pem(rsa.generate_private_key(65537, 2048))),
    "twin": ("05", P256),
}


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftToken]:
    made = make_token(tmp_path_factory.mktemp("token"))
    for label, (key_id, content) in (KEYS | OTHERS).items():
        made.import_key(label, key_id, content)
    made.import_key("twin", "06", P256)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.variables.items():
            patch.setenv(name, value)
        yield made
        reconnect(made)  # with the variables of the process: no other test finds these tokens


def read_key(token: SoftToken, **names: str) -> BundleSigner:
    """Return a key as the service does."""
    read_keys = SigningSettings(key_uri=parse_token_uri(token.uri(**names))).key_reader()
    assert read_keys is not None
    assert read_keys().signer is read_keys().signer, "the token is opened once"
    return read_keys().signer


def reconnect(token: SoftToken) -> None:
    """End all sessions, as a module whose service was restarted does."""
    module = parse_token_uri(token.uri(object="p256")).module
    pkcs11.lib(str(module)).reinitialize()


@pytest.mark.parametrize("label", KEYS)
def test_a_bundle_opens_with_the_key_in_memory(token: SoftToken, label: str) -> None:
    key_id, content = KEYS[label]
    local = load_signing_key(content)
    for names in ({"object": label}, {"id": f"%{key_id}"}, {"object": label, "id": f"%{key_id}"}):
        key = read_key(token, **names)
        assert key.public == local.public
        bundle = sign_bundle(key, b"payload")
        assert open_bundle(bundle, [local.public]) == b"payload"
        assert (bundle == sign_bundle(local, b"payload")) == (label == "ed25519")


@pytest.mark.parametrize("label", KEYS)
def test_threads_sign(token: SoftToken, label: str) -> None:
    key = read_key(token, object=label)
    messages = [b"%d" % number for number in range(100)]
    with ThreadPoolExecutor(8) as threads:
        signatures = list(threads.map(key.sign, messages))
    assert all(map(key.public.accepts, signatures, messages))


def test_a_token_that_comes_back_signs_again(token: SoftToken) -> None:
    key = read_key(token, object="ed25519")
    expected = key.sign(b"a")
    reconnect(token)
    assert key.sign(b"a") == expected
    tokens, away = token.directory / "tokens", token.directory / "away"
    tokens.rename(away)
    tokens.mkdir()
    reconnect(token)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"token does not sign: /.*there is no token"):
            key.sign(b"a")
    tokens.rmdir()
    away.rename(tokens)
    assert key.sign(b"a") == expected


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ({"object": "absent"}, "has no private key, or no public key, of that object and id"),
        ({"object": "p256", "id": "%02"}, "has no private key, or no public key, of that object and id"),
        ({"object": "twin"}, "more than one key has that object and id"),
        ({"object": "p256", "serial": "00"}, "there is no token of that name"),
        ({"object": "p384"}, "is not an ECDSA P-256 or an Ed25519 key"),
        ({"object": "rsa"}, "is not an ECDSA P-256 or an Ed25519 key"),
    ],
)
def test_a_key_that_cannot_be_used_is_a_fault(token: SoftToken, names: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        read_key(token, **names)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("246802", "the PIN is wrong"),
        ("1", "the PIN is wrong"),
        (None, "cannot be read: .*No such"),
    ],
)
def test_a_pin_that_does_not_fit_is_a_fault(
    token: SoftToken, tmp_path: Path, content: str | None, fault: str
) -> None:
    file = tmp_path / "pin"
    if content is not None:
        file.write_text(content)
    reconnect(token)
    uri = token.uri(object="p256").replace(str(token.directory / "pin"), str(file))
    with pytest.raises(ConfigurationError, match=fault) as caught:
        TokenKey(parse_token_uri(uri))
    assert "246802" not in str(caught.value)


def test_a_module_that_is_not_one_is_a_fault(token: SoftToken, tmp_path: Path) -> None:
    for module in (tmp_path / "absent.so", token.directory / "pin"):
        uri = f"pkcs11:object=a?module-path={module}&pin-source={token.directory / 'pin'}"
        with pytest.raises(ConfigurationError, match=str(module)):
            TokenKey(parse_token_uri(uri))


def test_settings_take_the_key(token: SoftToken) -> None:
    variables = {
        "IMAGE_SERVICE_BASE_URL": "http://images.test",
        "DATA_DIR": str(token.directory),
        "SIGNING_KEY_URI": token.uri(object="p256"),
    }
    read_keys = Settings.from_environment(variables, standalone=True).signing.key_reader()
    assert read_keys is not None
    assert read_keys().signer.public == load_signing_key(P256).public
    file = token.directory / "p256.pem"
    for values, fault in (
        ({"SIGNING_KEY_FILE": str(file)}, "SIGNING_KEY_FILE and SIGNING_KEY_URI are set"),
        (
            {"SIGNING_KEY_URI": token.uri(object="absent"), "LISTEN_PORT": "x"},
            "SIGNING_KEY_URI=.*cannot be used",
        ),
        ({"SIGNING_KEY_URI": "pkcs11:", "LISTEN_PORT": "x"}, "SIGNING_KEY_URI=.*module-path.*|LISTEN_PORT"),
    ):
        with pytest.raises(ConfigurationError, match=fault) as caught:
            Settings.from_environment({**variables, **values}, standalone=True)
        assert PIN not in caught.value.detail

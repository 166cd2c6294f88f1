from __future__ import annotations

import traceback

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import SnapshotUnreadable
from image_service.core.images.reference import Credentials, CredentialScheme
from image_service.server.snapshots.storage.encryption import Seal, SnapshotCipher

VAULT = SnapshotCipher(b"i" * 32)
KEY = b"k" * 32
TOKEN = Credentials(CredentialScheme.IMAGE_TOKEN, "a-token")
OTHERS = (
    None,
    Credentials(CredentialScheme.IMAGE_TOKEN, "a-toke"),
    Credentials(CredentialScheme.API_KEY, "a-token"),
    Credentials(CredentialScheme.IMAGE_TOKEN, ""),
)
PAYLOAD = b"a pull secret"


def seal_of(credentials: Credentials | None, key: bytes = KEY, vault: SnapshotCipher = VAULT) -> Seal:
    """The seal of these credentials, for a key that is the same with all of them."""
    return attrs.evolve(vault.seal_of("id", "full-iso", credentials), key=key)


SEALED = seal_of(TOKEN).seal(7, PAYLOAD)


@given(
    st.binary(),
    st.integers(min_value=1),
    st.none() | st.builds(Credentials, st.sampled_from(CredentialScheme), st.text("aä\n0:", max_size=9)),
    st.binary(),
)
def test_sealed_payload_is_unsealed(
    key: bytes, generation: int, credentials: Credentials | None, payload: bytes
) -> None:
    sealed = seal_of(credentials, key).seal(generation, payload)
    assert seal_of(credentials, key).unseal(generation, sealed) == payload
    assert len(sealed) == len(payload) + 29


def test_payload_of_64_mib_is_stored() -> None:
    payload = bytes(64 * 1024 * 1024)
    assert seal_of(TOKEN).unseal(1, seal_of(TOKEN).seal(1, payload)) == payload


def test_payload_of_the_first_release_is_unsealed() -> None:
    """A change of how keys are derived must be a new format: mounts outlive updates."""
    sealed = bytes.fromhex(
        "0176e1b72357a76e71c58cec40e814affd79567d1fddfade278bf015cb50edab72c503d70e3d172fce82"
    )
    assert seal_of(TOKEN).unseal(7, sealed) == PAYLOAD


@pytest.mark.parametrize("others", OTHERS, ids=str)
def test_other_credentials_or_secret_do_not_unseal(others: Credentials | None) -> None:
    with pytest.raises(SnapshotUnreadable, match="of 42 bytes does not open"):
        seal_of(others).unseal(7, SEALED)


def test_credentials_do_not_unseal_what_was_sealed_without() -> None:
    sealed = seal_of(None).seal(7, PAYLOAD)
    for credentials in (TOKEN, *OTHERS[1:]):
        with pytest.raises(SnapshotUnreadable):
            seal_of(credentials).unseal(7, sealed)


@pytest.mark.parametrize(
    ("vault", "key", "generation"),
    [
        (SnapshotCipher(b"j" * 32), KEY, 7),
        (VAULT, b"l" * 32, 7),
        (VAULT, KEY, 8),
        (VAULT, KEY + b"7", 7),
    ],
)
def test_other_key_or_generation_does_not_unseal(vault: SnapshotCipher, key: bytes, generation: int) -> None:
    with pytest.raises(SnapshotUnreadable):
        seal_of(TOKEN, key, vault).unseal(generation, SEALED)


@pytest.mark.parametrize("at", range(len(SEALED)))
def test_every_changed_byte_is_detected(at: int) -> None:
    for changed in (
        SEALED[:at] + bytes([SEALED[at] ^ 1]) + SEALED[at + 1 :],
        SEALED[:at],
        SEALED[:at] + SEALED[at + 1 :],
    ):
        with pytest.raises(SnapshotUnreadable):
            seal_of(TOKEN).unseal(7, changed)
    with pytest.raises(SnapshotUnreadable):
        seal_of(TOKEN).unseal(7, SEALED + b"\0")


def test_sealing_twice_differs() -> None:
    assert seal_of(TOKEN).seal(7, PAYLOAD) != SEALED


def test_errors_and_reprs_show_no_secret() -> None:
    secrets = [f"secret-{number}" for number in range(3)]  # a traceback shows the lines of this test too
    vault = SnapshotCipher(secrets[0].encode())
    seal = seal_of(attrs.evolve(TOKEN, secret=secrets[1]), vault=vault)
    with pytest.raises(SnapshotUnreadable) as raised:
        seal.unseal(7, secrets[2].encode())
    with pytest.raises(SnapshotUnreadable) as raised_too:
        seal.unseal(7, SEALED)
    errors = (raised.value, raised_too.value)
    lines = [line for error in errors for line in traceback.format_exception(error)]
    shown = "".join([*lines, repr(vault), repr(seal)])
    assert [secret for secret in secrets if secret in shown] == []


def test_seal_has_the_key_of_its_question_and_is_the_same_again() -> None:
    seal = VAULT.seal_of("id", "full-iso", TOKEN)
    assert seal.key == VAULT.key_of("id", "full-iso", TOKEN)
    assert seal == VAULT.seal_of("id", "full-iso", TOKEN) != VAULT.seal_of("id", "full-iso", OTHERS[1])


def test_what_the_cipher_seals_needs_no_credentials() -> None:
    sealed = VAULT.seal(KEY, 0, PAYLOAD)
    assert VAULT.unseal(KEY, 0, sealed) == seal_of(None).unseal(0, sealed) == PAYLOAD
    with pytest.raises(SnapshotUnreadable):
        VAULT.unseal(b"l" * 32, 0, sealed)


questions = st.tuples(
    st.text("a0:", max_size=3),
    st.text("a0:", max_size=3),
    st.none() | st.builds(Credentials, st.sampled_from(CredentialScheme), st.text("a0:", max_size=3)),
)


@given(questions, questions)
def test_keys_are_distinct_per_question_and_caller(
    one: tuple[str, str, Credentials | None], other: tuple[str, str, Credentials | None]
) -> None:
    assert (VAULT.key_of(*one) == VAULT.key_of(*other)) is (one == other)
    assert len(VAULT.key_of(*one)) == 32
    assert VAULT.key_of(*one) == VAULT.key_of(*one) != SnapshotCipher(b"j" * 32).key_of(*one)


@given(questions, questions)
def test_reader_keys_are_distinct_per_client_and_image(
    one: tuple[str, str, Credentials | None], other: tuple[str, str, Credentials | None]
) -> None:
    (address, ref, credentials), (other_address, other_ref, others) = one, other
    reader = VAULT.reader_key_of(address, credentials, ref)
    assert (reader == VAULT.reader_key_of(other_address, others, other_ref)) is (one == other)
    assert reader not in {VAULT.key_of(*one), VAULT.key_of(ref, address, credentials)}


def test_keys_equal_those_of_the_first_release() -> None:
    assert (
        VAULT.key_of("id", "full-iso", TOKEN).hex()
        == "0befdd930fd3d3fcc690356f8f90466b5c70d28c2d858fcdf2fe15c4917cc9b5"
    )
    assert (
        VAULT.reader_key_of("::1", None, "ref").hex()
        == "e831c95620d1f7fea0ad9b3eb679dcdfc5df5e206a53f7b24f668910bbea65e1"
    )

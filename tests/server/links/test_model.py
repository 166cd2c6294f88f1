"""Codes and targets of short links."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import NotFound, SnapshotUnreadable
from image_service.core.images.reference import (
    ISOS,
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
    PinnedVersion,
)
from image_service.server.links.link import LinkTarget, new_code

ID = "a6c0ff12-3456-4789-8abc-def012345678"
INITRD = ImageRef(ID, "4.20", "aarch64", Kind.PXE_INITRD)

refs = st.builds(ImageRef, st.just(ID), st.text(), st.text(), st.sampled_from([*ISOS, Kind.PXE_INITRD]))
credentials = st.builds(Credentials, st.sampled_from(CredentialScheme), st.text(min_size=1))
pins = st.builds(PinnedVersion, st.integers(1, 2**62), st.text())


def test_codes_are_16_characters_of_80_random_bits() -> None:
    codes = {new_code() for _ in range(200)}
    assert len(codes) == 200
    assert all(re.fullmatch("[a-z2-7]{16}", code) for code in codes)
    assert {character for code in codes for character in code} == set("abcdefghijklmnopqrstuvwxyz234567")


@given(refs, st.none() | credentials, st.none() | pins)
def test_targets_are_decoded_as_they_were_encoded(
    ref: ImageRef, credential: Credentials | None, pin: PinnedVersion | None
) -> None:
    target = LinkTarget(ref, credential, pin, 1.5)
    decoded = LinkTarget.decode(target.encode())
    assert decoded == target
    if credential is not None and decoded.credentials is not None:  # they are equal by their digests
        assert (decoded.credentials.scheme, decoded.credentials.secret) == (
            credential.scheme,
            credential.secret,
        )


@given(st.binary() | st.sampled_from([b"{}", b"[]", b'{"ref": [1]}', b'{"ref": ["a", "b", "c", "d"]}']))
def test_other_bytes_are_no_target(payload: bytes) -> None:
    with pytest.raises(SnapshotUnreadable) as error:
        LinkTarget.decode(payload)
    assert error.value.__context__ is None


def test_secrets_are_not_shown() -> None:
    secret = Credentials(CredentialScheme.IMAGE_TOKEN, "eyJ-secret")
    assert "eyJ-secret" not in repr(LinkTarget(INITRD, secret, None, 0))


@pytest.mark.parametrize("kind", ISOS)
def test_link_to_an_iso_has_its_suffix_only(kind: Kind) -> None:
    target = LinkTarget(ImageRef(ID, "4.20", "x86_64", kind), None, None, 0)
    assert target.find_ref("iso") is target.ref
    for suffix in ("img", "ipxe", "vmlinuz"):
        with pytest.raises(NotFound):
            target.find_ref(suffix)


def test_link_to_an_initrd_stands_for_all_that_netboot_needs() -> None:
    target = LinkTarget(INITRD, None, None, 0)
    assert target.find_ref("img") is target.ref
    assert target.find_ref("ipxe") == ImageRef(ID, "4.20", "aarch64", Kind.IPXE_SCRIPT)
    assert target.find_ref("vmlinuz") == ArtifactRef(BootArtifact.KERNEL, "4.20", "aarch64")
    with pytest.raises(NotFound):
        target.find_ref("iso")

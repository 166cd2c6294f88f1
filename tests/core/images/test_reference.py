from __future__ import annotations

import pytest

from image_service.core.images.reference import (
    ISOS,
    ArtifactRef,
    BootArtifact,
    Credentials,
    CredentialScheme,
    ImageRef,
    Kind,
)


def test_images_need_a_customization_and_boot_artifacts_none() -> None:
    assert ImageRef("id", "4.20", "x86_64", Kind.FULL_ISO).needs_customization
    assert not ArtifactRef(BootArtifact.KERNEL, "4.20", "x86_64").needs_customization


@pytest.mark.parametrize("kind", Kind)
def test_only_isos_are_isos(kind: Kind) -> None:
    assert kind.is_iso is (kind in ISOS)


def test_addrsize_has_the_customization_of_the_pxe_initrd() -> None:
    assert Kind.INITRD_ADDRSIZE.customization_kind is Kind.PXE_INITRD
    assert {kind.customization_kind for kind in ISOS} == set(ISOS)


def test_only_disconnected_isos_have_a_base_of_their_own() -> None:
    assert Kind.DISCONNECTED_ISO.base_kind is Kind.DISCONNECTED_ISO
    assert {kind.base_kind for kind in Kind} == {Kind.FULL_ISO, Kind.DISCONNECTED_ISO}


def test_credentials_do_not_show_their_secret() -> None:
    assert "hunter2" not in repr(Credentials(CredentialScheme.API_KEY, "hunter2"))

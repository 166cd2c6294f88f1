"""The URLs of which links are made."""

from __future__ import annotations

import pytest

from image_service.core.errors import ImageServiceError, InvalidParameter
from image_service.core.images.reference import CredentialScheme, ImageRef, Kind
from image_service.server.links.target_url import OwnUrls

ID = "a6c0ff12-3456-4789-8abc-def012345678"
BASE = "https://images.test/base"
OWN = OwnUrls(lambda: [BASE, "https://192.0.2.7", "https://[2001:db8::7]"], {8080, 8081})
ISO = ImageRef(ID, "4.20", "x86_64", Kind.FULL_ISO)
PATH = f"/byid/{ID}/4.20/x86_64/full.iso"


@pytest.mark.parametrize(
    "url",
    [
        f"{BASE}{PATH}",
        f"https://IMAGES.test:443/base{PATH}",
        f"https://images.test{PATH}",
        f"http://images.test:8081{PATH}",
        f"http://localhost:8080{PATH}",
        f"http://127.0.0.1:8080/base{PATH}",
        f"http://[::1]:8080{PATH}",
        f"https://192.0.2.7{PATH}",
        f"http://[2001:DB8::7]:8080{PATH}",
        f"{BASE}/images/{ID}?type=full-iso&version=4.20",
    ],
)
def test_urls_of_this_service_are_parsed(url: str) -> None:
    ref, route = OWN.parse(url)
    assert (ref, route.credentials) == (ISO, None)


def test_credentials_are_those_of_the_url() -> None:
    _, route = OWN.parse(f"{BASE}{PATH}?image_token=eyJ.token")
    assert route.credentials is not None
    assert (route.credentials.scheme, route.credentials.secret) == (CredentialScheme.IMAGE_TOKEN, "eyJ.token")


@pytest.mark.parametrize(("name", "kind"), [("ipxe", Kind.IPXE_SCRIPT), ("pxe-initrd", Kind.PXE_INITRD)])
def test_netboot_urls_are_parsed(name: str, kind: Kind) -> None:
    ref, _ = OWN.parse(f"{BASE}/images/{ID}/{name}?version=4.20&arch=aarch64")
    assert ref == ImageRef(ID, "4.20", "aarch64", kind)


@pytest.mark.parametrize(
    "url",
    [
        "",
        PATH,
        f"ftp://images.test{PATH}",
        f"https://user@images.test{PATH}",
        f"https://images.test{PATH}#part",
        f"https://other.test{PATH}",
        f"https://images.test:8443{PATH}",
        f"https://192.0.2.8{PATH}",
        f"https://192.0.2.7:8443{PATH}",
        f"https://images.test.evil.test{PATH}",
        f"{BASE}{PATH}.sha256",
        f"{BASE}{PATH}?digest=sha256",
        f"{BASE}/boot-artifacts/4.20/x86_64/rootfs.img",
        f"{BASE}/streams/stable.json",
        f"{BASE}/s/abcdefghijklmnop.iso",
        f"{BASE}/health",
        f"{BASE}/images/{ID}/s390x-initrd-addrsize?version=4.20",
        f"{BASE}/images/{ID}",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidParameter):
        OWN.parse(url)


@pytest.mark.parametrize("path", ["/nowhere", "/byid/x/4.20/x86_64/full.iso", f"/byid/{ID}/1/x86_64/x.iso"])
def test_paths_without_a_route_are_refused(path: str) -> None:
    with pytest.raises(ImageServiceError):
        OWN.parse(f"{BASE}{path}")

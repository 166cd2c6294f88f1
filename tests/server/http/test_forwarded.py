from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.http.forwarded import _parse, client_address, is_trusted_proxy

PROXIES = tuple(map(ip_network, ("10.0.0.0/8", "2001:db8::/32")))
PROXY, CLIENT = "10.0.0.1", "203.0.113.7"


def told(forwarded: str | None, peer: str = PROXY) -> str:
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    return client_address(peer, headers, PROXIES)


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        (None, PROXY),
        (CLIENT, CLIENT),
        (f"198.51.100.1, {CLIENT}", CLIENT),  # whatever a client says about itself
        (f"{CLIENT}, 10.0.0.2, 10.0.0.3", CLIENT),
        (f"198.51.100.1, {CLIENT}, 2001:db8::9", CLIENT),
        ("10.0.0.2, 10.0.0.3", "10.0.0.2"),  # a client among the proxies
        (f" {CLIENT}\t,\t10.0.0.2 ", CLIENT),
        ("", PROXY),
        (",", PROXY),
        ("unknown", PROXY),
        ("_hidden", PROXY),
        ("unknown, 10.0.0.2", "10.0.0.2"),
        (f"{CLIENT}, unknown, 10.0.0.2", "10.0.0.2"),
        ("203.0.113.7.9", PROXY),
        ("x" * 10000, PROXY),
        (" " * 8000 + "x y", PROXY),
    ],
)
def test_client_is_the_nearest_address_that_is_no_trusted_proxy(forwarded: str | None, expected: str) -> None:
    assert told(forwarded) == expected


@pytest.mark.parametrize(
    ("hop", "expected"),
    [
        (f"{CLIENT}:50000", CLIENT),
        (f"::ffff:{CLIENT}", CLIENT),
        ("2001:DB9:0:0::1", "2001:db9::1"),
        ("[2001:db9::1]", "2001:db9::1"),
        ("[2001:db9::1]:50000", "2001:db9::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_address_is_returned_in_canonical_form(hop: str, expected: str) -> None:
    """A client with two addresses would lose its mount."""
    assert told(hop) == expected
    assert told(f"{hop}, 10.0.0.2:443") == expected


def test_header_from_an_untrusted_peer_is_ignored() -> None:
    assert told("198.51.100.1", peer=CLIENT) == CLIENT
    assert told("198.51.100.1", peer="not an address") == "not an address"
    assert client_address(PROXY, {"x-forwarded-for": CLIENT}, ()) == PROXY


def test_hops_are_followed_up_to_a_limit() -> None:
    assert told(", ".join([CLIENT, *["10.0.0.2"] * 15])) == CLIENT
    assert told(", ".join([CLIENT, *["10.0.0.2"] * 16])) == "10.0.0.2"


def test_overlong_hop_is_not_cached() -> None:
    assert told(CLIENT) == CLIENT
    before = _parse.cache_info().misses
    assert told("7" * 65) == PROXY
    assert _parse.cache_info().misses == before


addresses = st.one_of(st.ip_addresses(), st.ip_addresses(network="10.0.0.0/8"))


@given(st.text(), st.lists(addresses.map(str), max_size=8))
def test_client_cannot_forge_its_address(written: str, hops: list[str]) -> None:
    """The nearest proxy appends the address of its client."""
    honest = [*hops, CLIENT, PROXY]
    assert told(", ".join(honest)) == CLIENT
    assert told(f"{written}, {', '.join(honest)}") == CLIENT


@given(st.lists(addresses, max_size=12), addresses)
def test_client_address_equals_a_naive_backward_search(hops: list[object], peer: object) -> None:
    found = str(peer)
    for hop in reversed(hops):
        if not any(ip_address(found) in proxy for proxy in PROXIES):
            break
        found = str(getattr(hop, "ipv4_mapped", None) or hop)
    expected = found if hops else str(peer)
    plain = getattr(ip_address(expected), "ipv4_mapped", None)
    assert told(", ".join(map(str, hops)), peer=str(peer)) in {expected, str(plain)}


@pytest.mark.parametrize(
    ("peer", "expected"),
    [(PROXY, True), ("::ffff:10.0.0.1", True), ("2001:db8::1", True), (CLIENT, False), ("", False)],
)
def test_trusted_proxy_is_one_of_its_networks(peer: str, expected: object) -> None:
    assert is_trusted_proxy(peer, PROXIES) is expected
    assert not is_trusted_proxy(peer, ())

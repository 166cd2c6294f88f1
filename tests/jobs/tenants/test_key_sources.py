from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from image_service.common.concurrency.rate_limiter import BURST, INTERVAL_SECONDS
from image_service.core.errors import Unavailable
from image_service.jobs.tenants.key_sources import FetchedKeys
from tests.jobs.tenants.tokens import EC, RSA, key_set

if TYPE_CHECKING:
    from image_service.jobs.tenants.keys import SigningKey


class Url:
    """Answers fetches with `document`; fails if there is none."""

    def __init__(self, document: bytes | None) -> None:
        self.document = document
        self.fetches = 0

    def fetch(self) -> Deferred[bytes]:
        self.fetches += 1
        return fail(Unavailable("down")) if self.document is None else succeed(self.document)


def find(keys: FetchedKeys, key_id: str) -> SigningKey | None:
    results: list[SigningKey | None] = []
    failures: list[BaseException] = []
    Deferred.fromCoroutine(keys.find(key_id, "RS256")).addCallbacks(
        results.append, lambda failure: failures.append(failure.value)
    )
    if failures:
        raise failures[0]
    return results[0]


def refresh(keys: FetchedKeys) -> None:
    Deferred.fromCoroutine(keys.refresh())


def test_known_key_costs_no_fetch() -> None:
    url = Url(key_set(RSA))
    keys = FetchedKeys(url.fetch, Clock())
    refresh(keys)
    for _ in range(100):
        assert find(keys, "rsa") is not None
    assert url.fetches == 1


def test_rotated_key_is_found_at_once() -> None:
    url = Url(key_set(EC))
    keys = FetchedKeys(url.fetch, Clock())
    refresh(keys)
    url.document = key_set(EC, RSA)
    assert find(keys, "rsa") is not None


def test_removed_key_is_refused_after_the_next_refresh() -> None:
    url = Url(key_set(EC, RSA))
    keys = FetchedKeys(url.fetch, Clock())
    refresh(keys)
    url.document = key_set(EC)
    refresh(keys)
    assert find(keys, "rsa") is None


def test_unknown_keys_cost_a_bounded_number_of_fetches() -> None:
    url, clock = Url(key_set(RSA)), Clock()
    keys = FetchedKeys(url.fetch, clock)
    refresh(keys)
    for minute in range(3):
        for number in range(1000):
            assert find(keys, f"unknown-{number}") is None
        assert url.fetches == 1 + BURST + minute
        clock.advance(INTERVAL_SECONDS)
    assert find(keys, "rsa") is not None


@pytest.mark.parametrize(
    "document", [None, b"", b"<html>", b'{"keys": []}'], ids=["down", "empty", "html", "none"]
)
def test_last_good_keys_serve_while_the_url_is_down(document: bytes | None) -> None:
    url = Url(key_set(RSA))
    keys = FetchedKeys(url.fetch, Clock())
    refresh(keys)
    url.document = document
    for _ in range(3):
        refresh(keys)
    assert find(keys, "rsa") is not None
    assert find(keys, "unknown") is None


def test_before_the_first_fetch_nobody_can_be_verified() -> None:
    url = Url(None)
    keys = FetchedKeys(url.fetch, Clock())
    with pytest.raises(Unavailable) as caught:
        find(keys, "rsa")
    assert caught.value.retry_after_seconds
    url.document = key_set(RSA)
    assert find(keys, "rsa") is not None


def test_requests_share_a_fetch() -> None:
    pending: list[Deferred[bytes]] = []

    def fetch() -> Deferred[bytes]:
        pending.append(Deferred())
        return pending[-1]

    keys = FetchedKeys(fetch, Clock())
    found: list[SigningKey | None] = []
    for _ in range(50):
        Deferred.fromCoroutine(keys.find("rsa", "RS256")).addCallback(found.append)
    assert len(pending) == 1
    pending[0].callback(key_set(RSA))
    assert len(found) == 50
    assert all(found)

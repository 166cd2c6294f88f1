from __future__ import annotations

from twisted.internet.task import Clock

from image_service.common.concurrency.rate_limiter import BURST, INTERVAL_SECONDS, MAX_KEYS, RateLimiter


def test_burst_is_admitted_and_the_rest_is_counted() -> None:
    clock = Clock()
    limiter: RateLimiter[str] = RateLimiter(clock)
    assert [limiter.admit("a") for _ in range(60)] == [0] * BURST + [None] * (60 - BURST)
    clock.advance(INTERVAL_SECONDS)
    assert [limiter.admit("a") for _ in range(3)] == [60 - BURST, None, None]
    clock.advance(INTERVAL_SECONDS)
    assert limiter.admit("a") == 2


def test_keys_are_counted_apart() -> None:
    limiter: RateLimiter[str] = RateLimiter(Clock())
    while limiter.admit("a") is not None:
        pass
    assert limiter.admit("b") == 0


def test_burst_is_admitted_again_after_a_long_time() -> None:
    clock = Clock()
    limiter: RateLimiter[str] = RateLimiter(clock)
    while limiter.admit("a") is not None:
        pass
    clock.advance(100 * BURST * INTERVAL_SECONDS)
    assert [limiter.admit("a") for _ in range(BURST + 1)] == [1, *[0] * (BURST - 1), None]


def test_memory_is_bounded() -> None:
    limiter: RateLimiter[int] = RateLimiter(Clock())
    for key in range(10 * MAX_KEYS):
        limiter.admit(key)
    assert limiter._buckets.size == MAX_KEYS

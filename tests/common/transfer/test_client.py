"""How often a client of manifests' servers tries."""

from __future__ import annotations

import pytest

from image_service.common.http.origins import AllowedOrigins
from image_service.common.transfer.client import (
    ServerAway,
    TransferClient,
    TransferTimes,
    TransientFailure,
)
from image_service.core.errors import TransferFailed


def attempts_of(failure: TransferFailed, number: int, outage_seconds: float) -> int:
    """Return how often an attempt is made that fails this number of times; two attempts are usual."""
    times = TransferTimes(attempts=2, backoff_seconds=0.001, outage_seconds=outage_seconds)
    made = []

    def attempt() -> int:
        made.append(1)
        if len(made) <= number:
            raise failure
        return len(made)

    return TransferClient(AllowedOrigins(frozenset()), times=times).retry(attempt)


@pytest.mark.parametrize("outage_seconds", [0, 60])
def test_failure_that_may_pass_is_tried_twice(outage_seconds: float) -> None:
    failure = TransientFailure("it has another MD5")
    assert attempts_of(failure, 1, outage_seconds) == 2
    with pytest.raises(TransientFailure):
        attempts_of(failure, 2, outage_seconds)


def test_server_that_is_away_is_tried_until_the_outage_is_too_long() -> None:
    failure = ServerAway("it refuses connections")
    assert attempts_of(failure, 7, 60) == 8
    with pytest.raises(ServerAway):
        attempts_of(failure, 2, 0)
    with pytest.raises(ServerAway):
        attempts_of(failure, 30, 0.05)


def test_other_failure_is_tried_once() -> None:
    with pytest.raises(TransferFailed):
        attempts_of(TransferFailed("it answered with status 404"), 1, 60)

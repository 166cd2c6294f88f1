"""The rate of a download, from what the kernel reports of its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.transport.admission import rate as rate_module
from image_service.server.transport.admission.rate import WINDOW_SECONDS, DownloadRate
from tests.server.transport.admission.waiting import Transfer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module")
def _transfers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate_module, "acknowledged_bytes", lambda transfer: transfer.acknowledged)
        patch.setattr(rate_module, "queued_bytes", lambda transfer: transfer.queued)
        yield


def measure(transfer: Transfer) -> DownloadRate:
    return DownloadRate(cast("Any", transfer))


SECONDS = st.integers(1, int(8 * WINDOW_SECONDS)).map(lambda eighths: eighths / 8)  # whose sums are exact


@given(st.lists(st.tuples(SECONDS, st.integers(0, 10**6)), max_size=60))
def test_rate_is_that_since_the_latest_sample_before_the_window(steps: list[tuple[float, int]]) -> None:
    transfer = Transfer()
    rate = measure(transfer)
    samples: list[tuple[float, int]] = []
    now = 0.0
    for seconds, count in steps:
        now += seconds
        transfer.acknowledged += count
        samples.append((now, transfer.acknowledged))
        earlier = [sample for sample in samples if now - sample[0] >= WINDOW_SECONDS]
        expected = (transfer.acknowledged - earlier[-1][1]) / (now - earlier[-1][0]) if earlier else None
        assert rate.sample(now) == expected


def test_window_begins_anew_when_the_client_waits_for_this_service() -> None:
    transfer = Transfer()
    rate = measure(transfer)
    rate.sample(0)
    transfer.queued = 0
    assert rate.sample(WINDOW_SECONDS) is None
    transfer.queued = 1
    assert rate.sample(WINDOW_SECONDS + 1) is None
    assert rate.sample(2 * WINDOW_SECONDS) == 0


def test_window_begins_anew_after_a_pause_of_the_samples() -> None:
    transfer = Transfer()
    rate = measure(transfer)
    for now in range(10):
        rate.sample(now)
    assert rate.sample(100) is None
    transfer.acknowledged = 4000
    assert rate.sample(100 + WINDOW_SECONDS) == 4000 / WINDOW_SECONDS

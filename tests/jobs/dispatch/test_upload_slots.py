"""Slots of uploads, with a clock of their own."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, TypeAlias, cast

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from image_service.core.errors import Unavailable
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.server.transport.admission.rate import ClientRate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.server.web_api.request_content import RequestContent

MIN_RATE = 1000
_attempts = count()


@attrs.define(eq=False)
class Upload:
    """An upload whose client sends a number of bytes per second; it ends when it is aborted."""

    tenant: str
    bytes_per_second: float
    clock: Clock
    is_receiving: bool = False
    is_aborted: bool = False
    is_awaited: bool = True
    ended: Deferred[None] = attrs.field(factory=Deferred)
    result: Deferred[None] = attrs.field(init=False)
    rate: ClientRate = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rate = ClientRate(
            lambda: int(self.clock.seconds() * self.bytes_per_second), lambda: self.is_awaited
        )

    def abort(self, reason: str) -> None:
        assert str(MIN_RATE) in reason
        self.is_aborted = True
        self.ended.callback(None)

    async def run(self, slots: UploadSlots, attempt: str) -> None:
        async with slots.slot(self.tenant, attempt, cast("RequestContent", self)):
            self.is_receiving = True
            await self.ended
        self.is_receiving = False


@attrs.define
class Site:
    """Slots, and the uploads that want them."""

    clock: Clock
    slots: UploadSlots
    uploads: list[Upload] = attrs.field(factory=list)

    def start(self, tenant: str, bytes_per_second: float = 2 * MIN_RATE, attempt: str = "") -> Upload:
        upload = Upload(tenant, bytes_per_second, self.clock)
        attempt = attempt or f"of its own {next(_attempts)}"
        upload.result = Deferred.fromCoroutine(upload.run(self.slots, attempt))
        self.uploads.append(upload)
        upload.result.addErrback(lambda failure: failure.trap(CancelledError))
        return upload

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.5] * int(seconds * 2))


MakeSite: TypeAlias = "Callable[..., Site]"


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    """Make slots; their uploads end in the end."""
    sites = []

    def make(slots: int = 12, min_rate: int = MIN_RATE) -> Site:
        clock = Clock()
        sites.append(Site(clock, UploadSlots(slots, min_rate, clock)))
        return sites[-1]

    yield make
    for site in sites:
        for upload in site.uploads:
            upload.result.cancel()


def receiving(uploads: list[Upload]) -> int:
    return sum(upload.is_receiving for upload in uploads)


def test_each_tenant_leaves_a_share_to_the_next(make_site: MakeSite) -> None:
    site = make_site()
    shares = [receiving([site.start(tenant) for _ in range(20)]) for tenant in "abc"]
    assert shares == [6, 4, 2]  # of 12: a half, a third, and the rest
    assert not site.start("d").is_receiving


def test_free_slot_goes_to_the_tenant_with_the_fewest(make_site: MakeSite) -> None:
    site = make_site(4)
    first = [site.start("a") for _ in range(4)]
    second = [site.start("b") for _ in range(4)]
    assert (receiving(first), receiving(second)) == (2, 1)
    third = site.start("c")
    assert third.is_receiving
    fourth = site.start("d")
    first[0].ended.callback(None)
    assert fourth.is_receiving


def test_slow_upload_goes_while_a_tenant_with_fewer_waits(make_site: MakeSite) -> None:
    site = make_site()
    slow = [
        site.start(tenant, 10 + number)
        for tenant, share in (("a", 6), ("b", 4), ("c", 2))
        for number in range(share)
    ]
    assert receiving(slow) == 12
    site.wait(20)
    assert not any(upload.is_aborted for upload in slow)  # nobody waits
    quick = site.start("quiet")
    site.wait(5)
    assert quick.is_receiving
    assert [upload.is_aborted for upload in slow] == [True] + 11 * [False]  # the slowest


def test_quick_uploads_and_those_that_wait_for_the_store_stay(make_site: MakeSite) -> None:
    site = make_site(4)
    quick = [site.start("a") for _ in range(2)]
    stored = site.start("b", 0)
    stored.is_awaited = False
    last = site.start("c")
    waiting = site.start("d")
    site.wait(60)
    assert not waiting.is_receiving
    assert not any(upload.is_aborted for upload in (*quick, stored, last))
    stored.ended.callback(None)
    assert waiting.is_receiving


def test_slow_uploads_stay_while_nobody_or_a_tenant_with_more_waits(make_site: MakeSite) -> None:
    site = make_site(3)
    slow = site.start("slow", 1)
    greedy = [site.start("greedy") for _ in range(5)]
    assert 0 < receiving(greedy) < 5
    site.wait(60)
    assert not slow.is_aborted


def test_slow_uploads_of_other_attempts_of_its_tenant_go_while_one_waits(make_site: MakeSite) -> None:
    """Else a worker would wait for a slot of its job's tenant, and take no job of others."""
    site = make_site()
    slow = [site.start("a", 10, f"slow {number % 20}") for number in range(40)]
    assert receiving(slow) == 6
    quick = site.start("a")
    site.wait(60)
    assert quick.is_receiving
    assert any(upload.is_aborted for upload in slow)


def test_slow_uploads_of_one_attempt_stay_while_another_of_it_waits(make_site: MakeSite) -> None:
    site = make_site(2)
    files = [site.start("a", 10, "an attempt") for _ in range(2)]
    site.wait(60)
    assert receiving(files) == 1
    assert not any(upload.is_aborted for upload in files)


def test_any_rate_is_enough_without_a_least_one(make_site: MakeSite) -> None:
    site = make_site(2, min_rate=0)
    slow = [site.start("a", 0), site.start("b", 0)]
    waiting = site.start("c")
    site.wait(60)
    assert not waiting.is_receiving
    assert not any(upload.is_aborted for upload in slow)


def test_attempt_sends_two_files_at_a_time(make_site: MakeSite) -> None:
    site = make_site()
    first, second = (site.start("a", attempt="1") for _ in range(2))
    assert receiving([first, second]) == 2
    refused = Upload("a", 0, site.clock)
    with pytest.raises(Unavailable, match="sends 2 already"):
        refused.run(site.slots, "1").send(None)
    assert site.start("a", attempt="2").is_receiving
    first.ended.callback(None)
    assert site.start("a", attempt="1").is_receiving


def test_client_that_leaves_while_it_waits_leaves_the_queue(make_site: MakeSite) -> None:
    site = make_site(2)
    first = [site.start(tenant) for tenant in "ab"]
    gone = site.start("c")
    gone.result.cancel()
    last = site.start("d")
    first[0].ended.callback(None)
    assert last.is_receiving
    assert not site.clock.getDelayedCalls()  # nothing waits

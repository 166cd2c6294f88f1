"""The doctor on the administrative listener: for URLs of this service alone."""

from __future__ import annotations

import json
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from image_service.app.admin.examinations_api import ExaminationsApi
from image_service.core.errors import InvalidParameter, Unavailable
from image_service.server.web_api.messages import ApiRequest
from image_service.tools.doctor.examination import Examination
from tests.pytwisted import ensure_deferred
from tests.server.snapshots.outcomes import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.web_api.messages import ApiResponse
    from image_service.tools.doctor.outcomes import CheckOutcome

BASE_URL = "http://images.example.com:8080"
OTHER_URL = "http://192.0.2.7:8080"


class StateDouble:
    """The state of a service whose URLs begin with `BASE_URL`, and began with `OTHER_URL`."""

    def find_base_urls(self) -> list[str]:
        return [BASE_URL, OTHER_URL]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": 1},
        {"url": f"{BASE_URL}/a", "deep": True},
        {"url": "http://192.0.2.1/full.iso"},
        {"url": f"{OTHER_URL}@192.0.2.1/full.iso"},
        {"url": f"{BASE_URL}0/full.iso"},
        {"url": f"{BASE_URL}@192.0.2.1/full.iso"},
        {"url": f"{BASE_URL}/full iso"},
        {"url": f"{BASE_URL}/../other"},
        {"url": f"{BASE_URL}/a/%2e%2E/other"},
    ],
)
def test_other_urls_are_refused(body: object) -> None:
    state: Any = StateDouble()
    reactor: Any = None  # no thread is started
    (operation,) = ExaminationsApi(state, reactor).operations
    request = ApiRequest("POST", operation.path, body=json.dumps(body).encode())
    with pytest.raises(InvalidParameter, match="URL"):
        outcome(operation.handler(request))  # type: ignore[arg-type] # a coroutine


@ensure_deferred
async def test_one_image_is_checked_at_a_time_also_if_its_client_has_left(
    reactor: EPollReactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, ended = Event(), Deferred[None]()

    def run(_: Examination) -> Iterator[CheckOutcome]:
        go_on.wait(60)
        yield from ()

    class ReactorDouble:
        """Calls as the reactor does, then `ended`."""

        def callFromThread(self, end: Callable[[object], None], result: object) -> None:
            reactor.callFromThread(self._call, end, result)

        def _call(self, end: Callable[[object], None], result: object) -> None:
            end(result)
            if not ended.called:
                ended.callback(None)

    monkeypatch.setattr(Examination, "run", run)
    state: Any = StateDouble()
    reactor_double: Any = ReactorDouble()
    (operation,) = ExaminationsApi(state, reactor_double).operations
    url = f"{OTHER_URL}/full.iso"
    request = ApiRequest("POST", operation.path, body=json.dumps({"url": url}).encode())

    def ask() -> Deferred[ApiResponse]:
        return Deferred.fromCoroutine(operation.handler(request))  # type: ignore[arg-type] # a coroutine

    left = ask()
    left.addErrback(lambda failure: failure.trap(CancelledError))
    left.cancel()
    with pytest.raises(Unavailable, match="another image"):
        await ask()
    go_on.set()
    await ended
    assert (await ask()).status == 200

"""``WEBHOOK_URL``: what has happened to machines is posted there."""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError
from image_service.common.http.origins import AllowedOrigins, origin_of_url
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import ImageServiceError, Unavailable
from image_service.server.boot_progress.clients import DOCTOR
from image_service.server.boot_progress.stages import ReadState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.settings.admin import WebhookSettings
    from image_service.settings.proxies import ProxySettings

MAX_EVENTS = 256
"""That wait to be posted; beyond it the oldest are dropped."""
DELIVER_SECONDS = 2.0
_LIMITS = RequestLimits(connect_seconds=5.0, stall_seconds=10.0, total_seconds=20.0)
_STATES = frozenset(each.value for each in (ReadState.QUIET, ReadState.STALLED, ReadState.DONE))
# Chat programs read these as the begin of a link or of the name of a group.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_OK = range(200, 300)


class Webhook:
    """Posts events, several at a time, and tries again while that fails.

    Args:
        name: of the receiver, without credentials.
        post: sends a document; raises HttpError or ImageServiceError.
        seconds: the clock.
    """

    _log = Logger()

    def __init__(
        self,
        name: str,
        post: Callable[[bytes], Awaitable[None]],
        seconds: Callable[[], float],
        backoff: Backoff | None = None,
    ) -> None:
        self._name = name
        self._post = post
        self._seconds = seconds
        self._backoff = backoff or Backoff(5.0, 300.0)
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._failures = 0
        self._retry_at = 0.0
        self._logged = ""

    def add(self, mount: dict[str, Any]) -> None:
        """Have an event posted if a machine is quiet, stalled or done."""
        if mount["state"] in _STATES and mount["client"] != DOCTOR:
            self._events.append({"event": mount["state"], "mount": mount})

    async def deliver(self) -> None:
        """Post the events that wait, unless that has failed a short time ago."""
        if not self._events or self._seconds() < self._retry_at:
            return
        sent = list(self._events)
        self._events.clear()
        try:
            await self._post(render_events(sent))
        except Interrupted:
            return
        except (HttpError, ImageServiceError) as error:
            self._events = deque([*sent, *self._events], MAX_EVENTS)
            self._fail(str(error))
        else:
            self._failures, self._logged = 0, ""

    def _fail(self, reason: str) -> None:
        self._failures += 1
        self._retry_at = self._seconds() + self._backoff.delay_seconds(self._failures)
        if reason != self._logged:
            self._logged = reason
            self._log.warn(
                "cannot post notifications to {receiver}: {reason}", receiver=self._name, reason=reason
            )


def render_events(events: Sequence[dict[str, Any]]) -> bytes:
    """Return the document: the events, and for chat programs a text with a line for each."""
    lines = []
    for event in events:
        mount = event["mount"]
        image = f"{mount['infra_env_name'] or mount['infra_env'] or 'boot artifacts'} ({mount['kind']})"
        stage = "" if mount["stage"] is None else f" at {mount['stage']}"
        client = mount["client"] or "unknown client"
        line = f"{mount['address']} ({client}), {image}: {event['event']}{stage}"
        lines.append("".join(char if char.isprintable() else " " for char in line).translate(_ESCAPES))
    return json.dumps({"text": "\n".join(lines), "events": events}).encode()


def start_webhook(parts: PartsStack, settings: WebhookSettings, proxies: ProxySettings) -> Webhook | None:
    """Post events until the parts stop; return None if there is no URL."""
    url = settings.url
    if url is None:
        return None
    origin, interruption = origin_of_url(url, "WEBHOOK_URL"), Interruption()
    allowed = AllowedOrigins(frozenset(settings.allowed_origins), origin, "WEBHOOK_ALLOW_HOST")
    proxy = proxies.find(url)
    http = HttpClient(
        client_context,
        _LIMITS,
        find_proxy=lambda _: proxy,
        check_address=None if proxy else allowed.check_address,  # a proxy has rules of its own
        interruption=interruption,
    )
    in_thread = parts.in_thread_pool(1, "webhook")
    parts.callback(interruption.interrupt)
    webhook = Webhook(
        str(origin), lambda body: in_thread(partial(_send, http, url, body)), parts.reactor.seconds
    )
    parts.call_every(DELIVER_SECONDS, webhook.deliver)
    return webhook


def _send(http: HttpClient, url: str, body: bytes) -> None:
    with http.send("POST", url, {"Content-Type": "application/json"}, body) as response:
        if response.status not in _OK:
            raise Unavailable(f"status {response.status}")

"""A client that starts composes, follows them, and deletes them: the profile ``composer``."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs

from image_service.tools.loadtest.traffic.client import (
    BACKOFF_SECONDS,
    DEFAULT_RETRY_SECONDS,
    LoadClient,
    RequestRefused,
)
from image_service.tools.loadtest.traffic.connection import RequestFailed
from image_service.tools.loadtest.traffic.objectives import Timing
from image_service.tools.loadtest.traffic.verification import find_detail

if TYPE_CHECKING:
    from image_service.tools.loadtest.traffic.verification import ResponseHead

POLL_SECONDS = 1.0
"""Between two requests for the status of a compose, as in composer-cli."""
_RETRY_STATUSES = {429, 503}
_SUCCESSES = range(200, 300)
_MAX_BYTES = 4 * 1024 * 1024
_FIRST_RANGE = "Range: bytes=0-65535\r\n"
_IGNITION = b'{"ignition": {"version": "3.2.0"}}'
DEFAULT_REQUEST: bytes = json.dumps(
    {
        "distribution": "rhcos-4.17",
        "image_requests": [
            {
                "architecture": "x86_64",
                "image_type": "network-installer",
                "repositories": [],
                "upload_targets": [{"type": "local", "upload_options": {}}],
            }
        ],
        "customizations": {"ignition": {"embedded": {"config": b64encode(_IGNITION).decode()}}},
    }
).encode()
"""A minimal ISO of the sample, which needs no worker."""


class ComposeLoadClient(LoadClient):
    """Composes images, one after the other.

    For each it sends POST, asks for its status until it has ended, reads the first range of the image, a page
    of the list and the metadata, and sends DELETE. A compose that fails is an error ``compose-failed``. One
    that runs at the end of the test is not deleted.
    """

    async def _do_next(self) -> None:
        """Start a compose and follow it to its end."""
        started_at = self._state.clock()
        created = await self._ask("POST", "/compose", self._plan.compose)
        if created is None:
            return
        path = f"/composes/{quote(str(created['id']), safe='')}"
        status = await self._wait(path)
        if status is None:
            return
        if status["status"] == "success":
            self._state.counters.record_duration(Timing.COMPOSE, self._state.clock() - started_at)
            await self._ask("GET", f"{path}/download", fields=_FIRST_RANGE)
        else:
            reason = status["image_status"].get("error", {}).get("reason", "")
            self._state.counters.record_error("compose-failed", str(reason))
        await self._ask("GET", "/composes/?size=20")
        await self._ask("GET", f"{path}/metadata")
        await self._ask("DELETE", path)

    async def _wait(self, path: str) -> dict[str, Any] | None:
        """Return the status of a compose that has ended; None: the test ends first."""
        while not self._state.is_over:
            status = await self._ask("GET", path)
            if status is not None and status["status"] != "pending":
                return status
            await self._state.sleep(POLL_SECONDS)
        return None

    async def _ask(
        self, method: str, path: str, content: bytes = b"", fields: str = ""
    ) -> dict[str, Any] | None:
        """Send a request, and count its outcome; return the JSON of its response, or None after an error."""
        counters = self._state.counters
        try:
            document = await self._exchange_json(method, path, content, fields)
        except RequestRefused as refused:
            counters.refusals += 1
            await self._state.sleep(float(refused.args[0]))
        except RequestFailed as failed:
            self._disconnect()
            counters.record_error(failed.kind, failed.detail)
            await self._state.sleep(BACKOFF_SECONDS)
        else:
            counters.requests += 1
            return document
        return None

    async def _exchange_json(self, method: str, path: str, content: bytes, fields: str) -> dict[str, Any]:
        due = await self._wait_until_due()
        api = self._plan.targets[self._number % len(self._plan.targets)]
        target = attrs.evolve(api, path=f"{api.path.rstrip('/')}{path}")
        if content:
            fields += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        request = self._state.encode_request(target, method, fields) + content
        receiver = _JsonReceiver()
        connection, head = await self._send(target, request, receiver, due, head=False)
        document = receiver.parse(head)
        self._state.counters.record_duration(Timing.REQUEST, self._state.clock() - self._started_at)
        self._record_first_byte(connection)
        return document


class _JsonReceiver:
    """Keeps the content of a response."""

    def __init__(self) -> None:
        self._content = bytearray()

    def receive_head(self, head: ResponseHead) -> None:
        """Do nothing: the head comes with the complete response."""

    def receive_content(self, data: bytes) -> None:
        """Keep content, up to a limit."""
        self._content += data[: _MAX_BYTES - len(self._content)]

    def parse(self, head: ResponseHead) -> dict[str, Any]:
        """Return the JSON object; an empty one for content of another type.

        Raises:
            RequestRefused: the server asks to try later.
            RequestFailed: the status is not a success, or the content is not JSON.
        """
        if head.status in _RETRY_STATUSES and "retry-after" in head.fields:
            text = head.fields["retry-after"]
            raise RequestRefused(float(text) if text.isdecimal() else DEFAULT_RETRY_SECONDS)
        if head.status not in _SUCCESSES:
            raise RequestFailed(f"status-{head.status}", find_detail(head, bytes(self._content)))
        if not head.fields.get("content-type", "").startswith("application/json"):
            return {}
        try:
            return dict(json.loads(self._content))
        except ValueError:
            raise RequestFailed("malformed") from None


def read_compose_request(name: str) -> bytes:
    """Return the content of a file; raises ValueError if it is not a JSON object."""
    content = Path(name).read_bytes()
    try:
        document: object = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("must be a file of a JSON object, the content of POST /compose")  # noqa: TRY004 - a file's content
    return content

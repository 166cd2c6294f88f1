"""Contents of requests."""

from __future__ import annotations

from image_service.server.web_api.request_content import RequestContent


def received(content: bytes, kind: type[RequestContent] = RequestContent) -> RequestContent:
    """Return content that was received wholly."""
    whole = kind(lambda: None, lambda: None, lambda: None)
    whole.feed(content)
    whole.complete()
    return whole

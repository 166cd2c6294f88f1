"""The bytes of composes: what workers read, and what clients download."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.http.respond import Representation  # noqa: TC001 - attrs resolves annotations at run time

if TYPE_CHECKING:
    from image_service.jobs.model import Compose
    from image_service.management.messages import ApiRequest, ApiResponse


@attrs.frozen(eq=False)
class Content:
    """Bytes that are read by ranges.

    Args:
        representation: what is served.
        sha256: of all bytes, lower-case hex; None: not known.
    """

    representation: Representation
    sha256: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.representation.image.size


class Contents:
    """Opens the contents of composes."""

    async def open_input(self, compose: Compose, source: str) -> Content:
        """Open what a job reads.

        Args:
            compose: whose job it is.
            source: as in `Step.inputs`.

        Raises:
            NotFound: the compose has no such input, or not any more.
            Unavailable: the base image is being fetched; says when to retry.
            BaseImageError, Unprocessable: it can never be made of this base.
            StoreFailed: the object store does not answer.
        """
        raise NotImplementedError

    async def open_image(self, compose: Compose) -> Content:
        """Open the finished image of a compose, for downloads; raises as `open_input`."""
        raise NotImplementedError

    def respond(self, content: Content, request: ApiRequest) -> ApiResponse:
        """Return the response to a GET or HEAD request: 200, 206, 304, 412 or 416, sent while it is read."""
        raise NotImplementedError

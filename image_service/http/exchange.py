"""The words that the connection and the application share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from image_service.http.response import Response  # noqa: TC001 - attrs resolves annotations

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from image_service.http.head import Request


@attrs.frozen
class Subject:
    """What an answer is about, for the log: nothing in it is a credential.

    Args:
        handler: the route's pattern; empty where no route was found.
        infra_env: its identifier, if any.
        kind: kind of image, if any.
    """

    handler: str = ""
    infra_env: str = ""
    kind: str = ""


NOTHING = Subject()


@attrs.frozen(eq=False)
class Answer:
    """A response and what it is about."""

    response: Response
    subject: Subject = NOTHING


class Application(Protocol):
    """Answers requests; never raises and never fails."""

    def handle(self, request: Request, *, crowded: bool) -> Answer | Deferred[Answer]:
        """Answer a request.

        Args:
            request: a sound one.
            crowded: the limit on connections is reached: only probes are answered, the rest refused.

        Returns:
            the answer, at once where it is known.
        """

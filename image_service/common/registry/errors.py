"""The error of a request to a registry."""

from __future__ import annotations


class RegistryFailed(Exception):
    """No answer, or one that cannot be used.

    Args:
        reason: names registry and repository; without credentials, and without anything that the peer sent.
        status: of the answer; 0: there was none.
        retry_after: the field of the answer that says when to come again; empty: it has none.
    """

    def __init__(self, reason: str, *, status: int = 0, retry_after: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.retry_after = retry_after

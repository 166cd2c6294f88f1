"""Check of the requests for an infra-env that an image service has seen: failures, and the boot's stage."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self

import attrs

from image_service.core.errors import ImageServiceError, Unavailable
from image_service.tools.doctor.expiry import read_claims
from image_service.tools.doctor.outcomes import passed, skipped, warned
from image_service.tools.doctor.web_client import USER_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.target import ImageUrl

SEEN_CHECKS = ("requests-seen",)

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_CLAIMS = ("infra_env_id", "sub")
_MAX_SHOWN = 3


@attrs.frozen
class ServerView:
    """The mounts and failures that the administrative listener of an image service lists."""

    mounts: Sequence[Mapping[str, Any]]
    failures: Sequence[Mapping[str, Any]]

    @classmethod
    def fetch(cls, get: Callable[[str], bytes]) -> Self:
        """Return both lists.

        Args:
            get: returns the content at a path of the listener.

        Raises:
            ImageServiceError: as `get` does, or the content is none of these lists.
        """
        try:
            mounts, failures = (
                [dict(each) for each in json.loads(get(f"/api/v1/{name}"))[name]]
                for name in ("mounts", "failures")
            )
        except (ValueError, TypeError, KeyError):
            raise Unavailable("the response is not that of an image service") from None
        return cls(mounts, failures)


def check_requests(url: ImageUrl, fetch_view: Callable[[], ServerView] | None) -> CheckOutcome:
    """Return the outcome of the check; `fetch_view` is None if the service's listener is not known."""
    (name,) = SEEN_CHECKS
    infra_env = find_infra_env(url)
    if fetch_view is None:
        return skipped(name, "--admin URL asks an image service which requests it has seen")
    if infra_env is None:
        return skipped(name, "the URL names no infra-env; check the URL that a short link was made of")
    try:
        view = fetch_view()
    except ImageServiceError as error:
        return skipped(name, error.detail)
    of_infra_env = [each for each in view.mounts if str(each.get("infra_env")).lower() == infra_env]
    own = [each for each in of_infra_env if str(each.get("user_agent")).startswith(USER_AGENT)]
    own_addresses = {each.get("address") for each in own}
    mounts = [each for each in of_infra_env if each not in own]
    failures = [
        each
        for each in view.failures
        if infra_env in str(each.get("path")).lower() and each.get("client") not in own_addresses
    ]
    texts = [*map(_describe_mount, mounts[-_MAX_SHOWN:]), *map(_describe_failure, failures[-_MAX_SHOWN:])]
    if not texts:
        return passed(name, "the service knows of no request for this infra-env")
    if failures or any(mount.get("stalled") for mount in mounts):
        return warned(name, "; ".join(texts), "look at these requests in the server's log")
    return passed(name, "; ".join(texts))


def find_infra_env(url: ImageUrl) -> str | None:
    """Return the identifier that the path or a JSON Web Token in it names; None: none, as in short links."""
    named = _UUID.search(url.path)
    if named is not None:
        return named[0].lower()
    for word in url.path.split("/"):
        claims = read_claims(word)
        for claim in _CLAIMS:
            if found := _UUID.fullmatch(str(claims.get(claim))):
                return found[0].lower()
    return None


def _describe_mount(mount: Mapping[str, Any]) -> str:
    client = mount.get("client") or "unknown client"
    stage = "stalled" if mount.get("stalled") else mount.get("stage") or "reading"
    return f"{mount.get('address')} ({client}): {stage}, last read {mount.get('last_read')}"


def _describe_failure(failure: Mapping[str, Any]) -> str:
    status = failure.get("status") or "aborted"
    return f"{failure.get('client')}: {status} at {failure.get('time')}, {failure.get('reason')}"

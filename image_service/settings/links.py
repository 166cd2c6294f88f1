"""Settings of short links."""

from __future__ import annotations

import attrs

from image_service.settings import parsers
from image_service.settings.variables import setting


@attrs.frozen(kw_only=True)
class LinkSettings:
    """Short links."""

    max_seconds: int = setting("LINK_MAX_SECONDS", parse=parsers.whole_number(1), default="2592000")
    """How long a short link may be valid, in seconds; it is made on `ADMIN_LISTEN`, for a day unless the
    request says otherwise. A change does not affect links that exist. The default is 30 days."""

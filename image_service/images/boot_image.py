"""The boot image: the ordered extents that one URL serves, and what tells it from every other."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs

from image_service.images.extents import ExtentMap  # noqa: TC001 - same


@attrs.frozen(eq=False)
class BootImage:
    """One image.

    Args:
        extents: its bytes.
        etag: strong validator, quotes included: a hash of what is below and of what lies over it, so every
            process and every replica makes the same one.
        modified: the later of the base's date and the customization's, UTC; None: the latter is unknown.
        file_name: what a download is saved as.
        is_iso: whether firmware boots it as a medium.
        is_public: whether it is the same for everyone.
        content_type: its media type.
    """

    extents: ExtentMap
    etag: str
    modified: datetime | None
    file_name: str
    is_iso: bool = True
    is_public: bool = False
    content_type: str = "application/octet-stream"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.extents.size

"""The service of a made-up later release: this tree with one more byte layout. Takes the same arguments."""

from __future__ import annotations

import sys

from image_service.core.images.layouts import LAYOUTS
from tests.core.images.later_layout import LAYOUTS_OF_BOTH

if __name__ == "__main__":
    LAYOUTS.clear()
    LAYOUTS.update(LAYOUTS_OF_BOTH)

    from image_service.cli import main

    sys.exit(main())

"""The service as its release before: this tree without its newest layout. Takes the same arguments."""

from __future__ import annotations

import sys

from image_service.core.images.layouts import LAYOUTS

if __name__ == "__main__":
    del LAYOUTS[max(LAYOUTS)]

    from image_service.cli import main

    sys.exit(main())

"""The service as its release before: this tree without its newest composer. Takes the same arguments."""

from __future__ import annotations

import sys

from image_service.core.images.layouts import COMPOSERS

if __name__ == "__main__":
    del COMPOSERS[max(COMPOSERS)]

    from image_service.cli import main

    sys.exit(main())

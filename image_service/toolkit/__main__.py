"""``python -m image_service.toolkit``: the same as ``image-toolkit``."""

import sys

from image_service.toolkit.commands import main

if __name__ == "__main__":
    sys.exit(main())

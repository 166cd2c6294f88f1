"""``python -m image_service.imaging``: the same as ``image-toolkit``."""

import sys

from image_service.imaging.commands import main

if __name__ == "__main__":
    sys.exit(main())

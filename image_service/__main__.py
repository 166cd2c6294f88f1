"""``python -m image_service``."""

import sys

from image_service.cli import main

sys.exit(main())

"""``python -m image_service.cli``."""

import sys

from image_service.cli import main

sys.exit(main())

"""The service, whose supervisor asks its serving processes each second whether they respond."""

import sys

from image_service.cli import main
from image_service.server.processes import watchdog

if __name__ == "__main__":
    watchdog.PING_SECONDS = 1
    sys.exit(main())

"""Sets the wall clock of a Python process off by ``CLOCK_ERROR_SECONDS``; the monotonic clock stays right.

Python imports this module at its start from a directory on PYTHONPATH. libfaketime, which other tests use,
makes threads wait too long for each other: a replica then misses the time limits of the database.
"""

import os
import time

_RIGHT = time.time
_ERROR_SECONDS = float(os.environ["CLOCK_ERROR_SECONDS"])

time.time = lambda: _RIGHT() + _ERROR_SECONDS

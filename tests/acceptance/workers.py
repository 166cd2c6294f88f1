"""``WORKERS`` of acceptance tests."""

import pytest

ONE_OR_TWO = (pytest.param(1, id="1 worker", marks=pytest.mark.soak), pytest.param(2, id="2 workers"))
"""Two serving processes do what one does, and share what it has for itself; ``make soak`` runs one too."""

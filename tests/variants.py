"""Variants of a test that only ``make soak`` runs, because the others go through the same code."""

import pytest
from _pytest.mark.structures import ParameterSet


def soaked(*values: object, id: str | None = None) -> ParameterSet:  # noqa: A002 - pytest's name
    """Return the parameters of such a variant."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)


ONE_OR_TWO = (soaked(1, id="1 worker"), pytest.param(2, id="2 workers"))
"""``WORKERS``: two serving processes do what one does, and share what it has for itself."""

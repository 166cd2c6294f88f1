"""usage: python .ci/packages/licenses.py DIRECTORY: print the packages in it, with their licenses."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def _license(distribution: Distribution) -> str:
    """Return what a package states: an expression (PEP 639), a line of text, or classifiers."""
    fields = distribution.metadata
    stated = fields["License-Expression"] or (fields["License"] or "").partition("\n")[0]
    classified = [
        line.rpartition(" :: ")[2] for line in fields.get_all("Classifier", []) if "License" in line
    ]
    return stated or ", ".join(classified)


if __name__ == "__main__":
    found = {
        each.name: f"{each.name} {each.version}: {_license(each)}"
        for each in distributions(path=sys.argv[1:])
    }
    print("\n".join(found[name] for name in sorted(found)))  # noqa: T201 - its output

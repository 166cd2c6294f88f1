"""The names of a build: its version and its architecture.

Versions and architectures become parts of file names and of URL paths, so neither alphabet needs an escape in
either. An architecture has no ``-``: no two images share a file name.
"""

from __future__ import annotations

import re

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}")
"""What may be one; `ARCHITECTURES` are those that there are."""
ARCHITECTURES = ("x86_64", "aarch64", "ppc64le", "s390x", "riscv64")
SYNONYMS = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of Go, Debian and Kubernetes, by which people know them too."""
VERSION_FAULT = (
    "must be at most 100 characters, each a letter, a digit or one of . _ -, the first a letter or digit"
)
ARCHITECTURE_FAULT = f"must be one of {', '.join((*ARCHITECTURES, *SYNONYMS))}"


def rpm_architecture(name: str) -> str:
    """Return the name by which RPM, and so each image, knows an architecture; another name unchanged."""
    return SYNONYMS.get(name, name)


def is_architecture(name: str) -> bool:
    """Return True for the name of an architecture, or a synonym of one."""
    return rpm_architecture(name) in ARCHITECTURES

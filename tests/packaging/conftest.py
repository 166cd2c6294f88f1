"""The wheel, built once for all tests that inspect or install it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "image_service", "man", "twisted")


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources that a build reads: a build writes into its tree."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (CHECKOUT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "dropin.cache")
            shutil.copytree(CHECKOUT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(CHECKOUT / name, copy)
    return copy


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with this environment's setuptools, without downloads."""
    dist = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, sources)
    subprocess.run(build, check=True, capture_output=True)
    (found,) = dist.glob("*.whl")
    return found

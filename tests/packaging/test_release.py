"""The released files are the same bytes from the same sources, complete, and described."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tarfile
import zipfile
from email import message_from_bytes
from typing import TYPE_CHECKING, Any

import pytest

from image_service import __version__
from tests.acceptance.clients import needs_client
from tests.packaging.conftest import CHECKOUT, copy_sources

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

DISTRIBUTIONS = CHECKOUT / ".ci" / "distributions"
COMMITTED_AT = 1_700_000_000
GENERATED = {"PKG-INFO", "setup.cfg"}  # setuptools adds a section to setup.cfg


def build(sources: Path, out: Path, **variables: str) -> dict[str, bytes]:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(COMMITTED_AT), **variables}
    subprocess.run([DISTRIBUTIONS, sources, out], env=environment, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def distributions(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it."""
    directory = tmp_path_factory.mktemp("distributions")
    build(copy_sources(tracked, directory / "sources"), directory / "dist")
    return directory / "dist"


@pytest.fixture(scope="module")
def sdist(distributions: Path) -> dict[str, bytes]:
    """Return the files of the sdist."""
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = [(member.name.partition("/")[2], archive.extractfile(member)) for member in archive]
        return {name: file.read() for name, file in members if file}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.soak
def test_distributions_are_equal_wherever_they_are_built(
    distributions: Path, tracked: list[str], tmp_path: Path
) -> None:
    """In another directory and time zone, from files with other modes, times and order, beside caches."""
    sources = copy_sources(tracked[::-1], tmp_path / "elsewhere")
    for name in ("tests/__pycache__/a.pyc", "twisted/plugins/dropin.cache", ".venv/a.py", ".cache/a.py"):
        (sources / name).parent.mkdir(exist_ok=True)
        (sources / name).touch()
    for path in sources.rglob("*.*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1, 1))
    again = build(sources, tmp_path / "dist", TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="1")
    assert again == {path.name: path.read_bytes() for path in distributions.iterdir()}
    assert again.keys() == {
        f"image_service-{__version__}.tar.gz",
        f"image_service-{__version__}-py3-none-any.whl",
    }


def test_sdist_has_every_file_of_the_repository_and_no_other(
    sdist: dict[str, bytes], tracked: list[str]
) -> None:
    expected = {
        path.relative_to(CHECKOUT).as_posix()
        for name in tracked
        for path in ((CHECKOUT / name).iterdir() if (CHECKOUT / name).is_dir() else [CHECKOUT / name])
        if path.is_file()
    }
    found = {name for name in sdist if ".egg-info/" not in name}
    assert found - {"PKG-INFO"} == expected
    assert all(sdist[name] == (CHECKOUT / name).read_bytes() for name in found - GENERATED)


def test_sdist_makes_the_wheel_of_the_checkout(distributions: Path, wheel: Path) -> None:
    (from_sdist,) = distributions.glob("*.whl")
    assert contents(from_sdist) == contents(wheel)


def test_description_for_registries_links_to_no_file(sdist: dict[str, bytes]) -> None:
    metadata = message_from_bytes(sdist["PKG-INFO"])
    assert "image-service serve --standalone" in metadata.get_payload()
    assert "](" not in metadata.get_payload()
    assert metadata["Version"] == __version__
    assert metadata["Author"] == "image-service maintainers"
    urls = [line.partition(", ")[2] for line in metadata.get_all("Project-URL", [])]
    assert urls
    assert all(url.startswith("https://") for url in urls)


def commit(directory: Path, tag: str) -> None:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "All"), ("tag", tag)):
        subprocess.run([needs_client("git"), "-C", directory, *identity, *command], check=True)


@pytest.mark.parametrize(
    ("tag", "fault"),
    [
        ("v9.9.9", f"the latest commit has the tag v9.9.9, and image_service.__version__ is {__version__}"),
        (f"v{__version__}", f"CHANGELOG.md has no section '## {__version__}'"),
    ],
)
def test_release_needs_the_version_as_tag_and_in_the_changelog(tmp_path: Path, tag: str, fault: str) -> None:
    (tmp_path / "image_service").mkdir()
    (tmp_path / "image_service" / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    (tmp_path / ".ci").mkdir()
    for name in ("release", "common.sh"):
        (tmp_path / ".ci" / name).write_bytes((CHECKOUT / ".ci" / name).read_bytes())
    commit(tmp_path, tag)
    done = subprocess.run(
        ["bash", tmp_path / ".ci" / "release", tmp_path / "dist"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"{fault}\n")
    assert not (tmp_path / "dist").exists()


@pytest.fixture
def sbom() -> ModuleType:
    """Import the program that makes the SBOM; the container image has one that it made."""
    spec = importlib.util.spec_from_file_location("sbom", CHECKOUT / ".ci" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(*packages: tuple[str, str]) -> dict[str, Any]:
    """Return what cyclonedx-py says about an environment with packages and the service."""
    own = {"name": "image-service", "version": "1", "externalReferences": [{"url": "file:///home/me/w.whl"}]}
    others = [{"name": name, "version": version} for name, version in packages]
    return {"metadata": {}, "components": [*others, own]}


def test_sbom_has_the_hashes_of_the_lock(sbom: ModuleType) -> None:
    document = described(("Zope.Interface", "8.7"))
    digests = ["a" * 64, "b" * 64]
    lock = f"""
attrs==1 \\
    --hash=sha256:{"c" * 64}
zope-interface==8.7 ; python_full_version < '3.14' \\
    --hash=sha256:{digests[0]} \\
    --hash=sha256:{digests[1]}
    # via twisted
"""
    sbom.complete(document, sbom.read_lock(lock), "image-service")
    (component,) = document["components"]
    (reference,) = component["externalReferences"]
    assert [entry["content"] for entry in reference["hashes"]] == digests
    assert "home" not in str(document)


def test_sbom_is_refused_for_a_package_that_is_not_locked(sbom: ModuleType) -> None:
    with pytest.raises(SystemExit, match="attrs 2 is installed, and not locked"):
        lock = sbom.read_lock("attrs==1 \\\n    --hash=sha256:" + "a" * 64)
        sbom.complete(described(("attrs", "2")), lock, "image-service")

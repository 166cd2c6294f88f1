"""The released files are the same bytes from the same sources, complete, and described."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from image_service import __version__
from image_service.core.provenance.dsse import encode_pre_authentication
from tests.acceptance.clients import needs_client, run_client
from tests.packaging.conftest import CHECKOUT, copy_sources

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.package

DISTRIBUTIONS = CHECKOUT / ".ci" / "distributions"
COMMITTED_AT = 1_700_000_000
NAMES = {"NAME": "Somebody", "EMAIL": "somebody@example.com"}
AUTHOR = {
    **os.environ,
    **{f"GIT_{who}_{name}": value for who in ("AUTHOR", "COMMITTER") for name, value in NAMES.items()},
}
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


@pytest.mark.soak
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


def git(directory: Path, *command: str) -> str:
    """Run Git, and return what it prints."""
    whole = [needs_client("git"), "-C", str(directory), *command]
    return subprocess.run(whole, check=True, capture_output=True, text=True, env=AUTHOR).stdout


def commit(directory: Path, *tags: str) -> None:
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "All")):
        git(directory, *command)
    for tag in tags:
        git(directory, "tag", tag)


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
def checkout(tmp_path: Path) -> Path:
    """Make a checkout with what has the version, before a release."""
    program, chart = "image_service/__init__.py", "conf/helm/image-service/Chart.yaml"
    for name in (program, chart, "docs/container.md", "man/image-service.1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    (tmp_path / "conf/kubernetes").mkdir()
    (tmp_path / "conf/kubernetes/one.yaml").write_text(
        f"image: image-service:{__version__}\nport: 1{__version__}\n"
    )
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- A line.\n\n## 0.0.1\n")
    (tmp_path / ".ci").mkdir()
    for name in ("set-version", "common.sh"):
        shutil.copy(CHECKOUT / ".ci" / name, tmp_path / ".ci")
    commit(tmp_path)
    return tmp_path


def set_version(checkout: Path, version: str, environment: dict[str, str] = AUTHOR) -> tuple[int, str]:
    command = [str(checkout / ".ci" / "set-version"), version]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_version_is_set_everywhere_committed_and_tagged(checkout: Path) -> None:
    assert set_version(checkout, "9.8.7") == (0, "committed and tagged v9.8.7\n")
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "describe") == "v9.8.7\n"
    assert "## 9.8.7\n\n- A line.\n\n## 0.0.1\n" in (checkout / "CHANGELOG.md").read_text()
    assert '__version__ = "9.8.7"' in (checkout / "image_service/__init__.py").read_text()
    assert "image-service 9.8.7" in (checkout / "man/image-service.1").read_text()
    assert "image-service-9.8.7.container.tar.gz" in (checkout / "docs/container.md").read_text()
    rendered = (checkout / "conf/kubernetes/one.yaml").read_text()
    assert rendered == f"image: image-service:9.8.7\nport: 1{__version__}\n"
    chart = yaml.safe_load((checkout / "conf/helm/image-service/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("9.8.7", "9.8.7")


def test_version_is_set_once_and_in_a_clean_checkout(checkout: Path) -> None:
    for wrong in ("v9", "9.8.7rc1"):  # packages of Debian would take the latter for newer than 9.8.7
        assert set_version(checkout, wrong) == (1, f"VERSION={wrong}: must be like 1.2.3\n")
    git(checkout, "tag", "v9.8.7")
    assert set_version(checkout, "9.8.7") == (1, "there is a tag v9.8.7 already\n")
    (checkout / "CHANGELOG.md").write_text("# Changelog\n")
    assert set_version(checkout, "9.8.8") == (1, "there are uncommitted changes: commit them first\n")
    git(checkout, "commit", "--all", "--message", "No section")
    status, fault = set_version(checkout, "9.8.8")
    assert (status, fault[:35]) == (1, "CHANGELOG.md must have one section ")


def test_version_changes_nothing_without_an_author(checkout: Path) -> None:
    configuration = {"COUNT": "1", "KEY_0": "user.useConfigOnly", "VALUE_0": "true", "GLOBAL": "/dev/null"}
    environment = {name: value for name, value in AUTHOR.items() if not name.startswith("GIT_")}
    environment |= {f"GIT_CONFIG_{name}": value for name, value in configuration.items()}
    status, fault = set_version(checkout, "9.8.7", environment)
    assert (status, "email" in fault) == (128, True)
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("programs", "fault"),
    [((), "nfpm is not here: make deps ARGS=soak"), (("nfpm",), "cannot read SIGNING_KEY_FILE=/no/key")],
)
def test_release_names_what_is_missing_before_it_begins(
    tmp_path: Path, programs: tuple[str, ...], fault: str
) -> None:
    for name in ("created", "installed", "lock", "tools"):  # of a virtual environment that is complete
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    for name in programs:
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    command = (needs_client("make"), "-C", str(CHECKOUT), "release", f"VENV={tmp_path}")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SIGNING_KEY_FILE": "/no/key"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, fault)


def test_chart_is_a_helm_repository_and_an_oci_artifact(tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        CHECKOUT / ".ci/chart.py",
        CHECKOUT / "conf/helm/image-service",
        tmp_path,
    ]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(COMMITTED_AT)})
    name = f"image-service-{__version__}.tgz"
    digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    (entry,) = yaml.safe_load((tmp_path / "index.yaml").read_text())["entries"]["image-service"]
    assert (entry["urls"], entry["digest"], entry["version"]) == ([name], digest, __version__)
    with tarfile.open(tmp_path / name) as archive:
        assert {"image-service/Chart.yaml", "image-service/values.yaml"} <= set(archive.getnames())
        assert all(member.isfile() for member in archive)
    layout = f"oci-archive:{tmp_path}/image-service-{__version__}.oci.tar:{__version__}"
    run_client("skopeo", "--insecure-policy", "copy", layout, f"dir:{tmp_path}/copied")
    assert (tmp_path / "copied" / digest).read_bytes() == (tmp_path / name).read_bytes()


def test_statement_names_each_file_and_the_commit(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    program: list[str | Path] = [sys.executable, CHECKOUT / ".ci/statement.py", tmp_path / "key", "c" * 40]
    sums = f"{'a' * 64}  debian12/one.deb\n{'b' * 64}  two.whl\n"
    bundle = json.loads(subprocess.run(program, check=True, input=sums.encode(), capture_output=True).stdout)
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    message = encode_pre_authentication(envelope["payloadType"], payload)
    key.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), message)
    statement = json.loads(payload)
    named = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert named == {"debian12/one.deb": "a" * 64, "two.whl": "b" * 64}
    (sources,) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert sources["digest"] == {"gitCommit": "c" * 40}


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
    lock = sbom.read_lock("attrs==1 \\\n    --hash=sha256:" + "a" * 64)
    with pytest.raises(SystemExit, match="attrs 2 is installed, and not locked"):
        sbom.complete(described(("attrs", "2")), lock, "image-service")

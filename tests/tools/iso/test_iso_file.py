"""The library, with coreos-installer as the reader of what it makes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import image_service
from image_service import CustomizedIso, IsoCustomization, open_iso
from image_service.core.errors import (
    BaseImageError,
    IgnitionInvalid,
    ImageServiceError,
    KernelArgumentInvalid,
)
from image_service.tools.iso.description import Description
from image_service.tools.iso.other_description import OtherDescription
from tests.acceptance.clients import run_client
from tests.core.families.coreos.miniso_builder import live_iso_with_minimal
from tests.core.families.live.test_families import BOOT, make
from tests.core.formats.filesystems.iso_builder import build_live_iso

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "library.md"
CONFIG = b'{"ignition": {"version": "3.3.0"}}\n'


@pytest.fixture
def coreos(tmp_path: Path) -> Path:
    path = tmp_path / "live.iso"
    path.write_bytes(live_iso_with_minimal())
    return path


@pytest.fixture
def generic(tmp_path: Path) -> Path:
    path = tmp_path / "other.iso"
    path.write_bytes(make("Other", BOOT))
    return path


@pytest.fixture
def customized(coreos: Path) -> Iterator[CustomizedIso]:
    with open_iso(coreos) as iso:
        yield iso.customize(IsoCustomization(config=CONFIG, append=["console=ttyS0"], delete=["absent"]))


def test_minimal_iso_is_the_one_of_coreos_installer(coreos: Path, tmp_path: Path) -> None:
    url = "http://192.0.2.1/rootfs.img"
    by_others, by_us = tmp_path / "theirs.iso", tmp_path / "ours.iso"
    run_client("coreos-installer", "iso", "extract", "minimal-iso", "--rootfs-url", url, coreos, by_others)
    with open_iso(coreos) as iso:
        iso.customize_minimal(IsoCustomization(), url).write(by_us)
        image = iso.customize_minimal(IsoCustomization(config=CONFIG, append=["a=1"], delete=["absent"]), url)
        assert image.read(0, image.size) != by_us.read_bytes()
        image.write(tmp_path / "customized.iso")
    assert by_us.read_bytes() == by_others.read_bytes()
    assert [argument.value for argument in image.ineffective] == ["absent"]
    assert run_client("coreos-installer", "iso", "ignition", "show", tmp_path / "customized.iso") == CONFIG
    arguments = run_client("coreos-installer", "iso", "kargs", "show", tmp_path / "customized.iso").decode()
    assert arguments.split()[-2:] == [f"coreos.live.rootfs_url={url}", "a=1"]


def test_minimal_iso_needs_a_recipe_and_a_pristine_iso(
    coreos: Path, generic: Path, customized: CustomizedIso, tmp_path: Path
) -> None:
    (tmp_path / "without.iso").write_bytes(build_live_iso())
    customized.write(tmp_path / "customized.iso")
    for path, reason in (
        (generic, "minimal ISOs are for CoreOS"),
        (tmp_path / "without.iso", "no usable recipe of a minimal ISO"),
        (tmp_path / "customized.iso", "already customized"),
    ):
        with open_iso(path) as iso, pytest.raises(BaseImageError, match=reason):
            iso.customize_minimal(IsoCustomization(), "http://192.0.2.1/rootfs.img")
    with open_iso(coreos) as iso, pytest.raises(KernelArgumentInvalid):
        iso.customize_minimal(IsoCustomization(), "http://192.0.2.1/a b")


def test_written_iso_has_config_and_arguments(customized: CustomizedIso, tmp_path: Path) -> None:
    target = tmp_path / "customized.iso"
    customized.write(target)
    assert run_client("coreos-installer", "iso", "ignition", "show", target) == CONFIG
    assert b"console=ttyS0" in run_client("coreos-installer", "iso", "kargs", "show", target)
    assert [argument.value for argument in customized.ineffective] == ["absent"]
    assert (target.stat().st_size, hashlib.sha256(target.read_bytes()).hexdigest()) == (
        customized.size,
        customized.sha256(),
    )


def test_ranges_are_slices_of_the_written_iso(customized: CustomizedIso, tmp_path: Path) -> None:
    target = tmp_path / "customized.iso"
    customized.write(target)
    whole = target.read_bytes()
    for offset, length in ((0, 0), (0, 1), (2047, 40_000), (customized.size - 3, 10), (customized.size, 5)):
        assert customized.read(offset, length) == whole[offset : offset + length]
    with pytest.raises(ValueError, match="offset -1 and length 2 must not be negative"):
        customized.read(-1, 2)


def test_closed_iso_is_not_read_from_the_next_file_that_is_opened(coreos: Path, tmp_path: Path) -> None:
    with open_iso(coreos) as iso:
        image = iso.customize(IsoCustomization(config=CONFIG))
        assert image.read(0x8001, 5) == b"CD001"
    with coreos.open("rb"):
        with pytest.raises(OSError, match="Bad file descriptor"):
            image.read(0x8001, 5)
        with pytest.raises((OSError, BaseImageError), match="Bad file descriptor"):
            image.write(tmp_path / "late.iso")
    assert not (tmp_path / "late.iso").exists()


def test_nothing_is_overwritten_by_chance(customized: CustomizedIso, coreos: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.write_bytes(b"kept")
    with pytest.raises(FileExistsError, match="exists"):
        customized.write(target)
    with pytest.raises(FileExistsError, match="is the base image itself"):
        customized.write(coreos, overwrite=True)
    assert target.read_bytes() == b"kept"
    customized.write(target, overwrite=True)
    assert target.stat().st_size == customized.size


def test_customized_iso_is_customized_again_only_after_a_reset(
    customized: CustomizedIso, coreos: Path, tmp_path: Path
) -> None:
    target = tmp_path / "customized.iso"
    customized.write(target)
    with open_iso(target) as iso:
        with pytest.raises(BaseImageError, match="is already customized"):
            iso.customize(IsoCustomization(config=CONFIG))
        assert iso.customize(IsoCustomization(), reset=True).read(0, iso.size) == coreos.read_bytes()


def test_descriptions_name_the_family(coreos: Path, generic: Path) -> None:
    with open_iso(coreos) as iso:
        description = iso.inspect()
        assert isinstance(description, Description)
        assert (iso.family, description.customized, description.size) == ("coreos", None, iso.size)
    with open_iso(generic, "generic") as iso:
        assert iso.family == "generic"
        assert isinstance(iso.inspect(), OtherDescription)


def test_files_are_laid_over_an_iso_of_another_family(generic: Path, tmp_path: Path) -> None:
    target = tmp_path / "customized.iso"
    with open_iso(generic, "generic") as iso:
        iso.customize(IsoCustomization(files={"answers/one.txt": b"1"})).write(target)
    out = tmp_path / "one.txt"
    run_client("xorriso", "-osirrox", "on", "-indev", target, "-extract", "/answers/one.txt", out)
    assert out.read_bytes() == b"1"


@pytest.mark.parametrize(
    ("customization", "error", "text"),
    [
        (IsoCustomization(files={"a": b""}), BaseImageError, "files on the medium"),
        (IsoCustomization(efi_files={"a": b""}), BaseImageError, "for other families"),
        (
            IsoCustomization(config=b"variant: fcos"),
            IgnitionInvalid,
            "^the Ignition config of 13 bytes is not JSON; it is Butane",
        ),
        (IsoCustomization(config=b""), IgnitionInvalid, "is not JSON"),
        (IsoCustomization(append=["a$b"]), KernelArgumentInvalid, r"\$"),
        (IsoCustomization(network_keyfiles={"../x": b""}), ImageServiceError, "x"),
        (IsoCustomization(network_keyfiles={"a": b""}, ramdisk=b""), BaseImageError, "only one of them"),
    ],
)
def test_what_coreos_does_not_take_is_refused(
    coreos: Path, customization: IsoCustomization, error: type[Exception], text: str
) -> None:
    with open_iso(coreos) as iso, pytest.raises(error, match=text):
        iso.customize(customization)


def test_other_families_take_no_ramdisk(generic: Path) -> None:
    with open_iso(generic, "generic") as iso, pytest.raises(BaseImageError, match="of the family generic"):
        iso.customize(IsoCustomization(ramdisk=b""))


def test_one_argument_in_place_of_a_sequence_is_refused() -> None:
    with pytest.raises(TypeError, match="not the string 'console=ttyS0'"):
        IsoCustomization(append="console=ttyS0")


def test_secrets_are_not_shown() -> None:
    shown = repr(
        IsoCustomization(config=b"hidden", append=["hidden"], files={"a": b"hidden"}, ramdisk=b"hidden")
    )
    assert "hidden" not in shown


def test_what_is_no_iso_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"text")
    with pytest.raises(BaseImageError, match=re.escape(str(path))), open_iso(path):
        pass
    with pytest.raises(BaseImageError, match="is not a regular file"), open_iso(tmp_path):
        pass


def test_import_of_the_package_imports_nothing_of_the_library() -> None:
    code = "import sys, image_service; print([m for m in sys.modules if m.startswith('image_service.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        image_service.absent  # noqa: B018 - the access is the test


def test_examples_of_the_document_run_as_printed(
    coreos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert coreos.name == "live.iso"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.ign").write_bytes(CONFIG)
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        exec(compile(example, str(DOCUMENT), "exec"), {})  # noqa: S102 - our own text
    assert run_client("coreos-installer", "iso", "ignition", "show", tmp_path / "customized.iso") == CONFIG

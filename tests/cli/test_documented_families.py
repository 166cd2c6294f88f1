"""The example of each family in docs/families.md edits an ISO of that family."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.families.coreos.family import COREOS
from image_service.core.families.live.families import FAMILIES
from tests.acceptance.service import CHECKOUT
from tests.core.families.live.test_config_checks import VALID, archive
from tests.core.families.live.test_families import BOOT, CASES, ESP_OPTIONS, REFUSING, make, make_esp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cli.conftest import Run

pytestmark = pytest.mark.slow
ROW = re.compile(r"^\| ((?:`[a-z-]+`(?:, )?)+) \| [^|]* \| `(--[^`]+)`", re.MULTILINE)
EXAMPLES = {
    name: options
    for names, options in ROW.findall((CHECKOUT / "docs" / "families.md").read_text())
    for name in re.findall(r"`(.*?)`", names)
}
MENU = b"menuentry x {\n  linux /vmlinuz ignition.platform.id=metal\n  initrd /initrd.gz\n}\n"
ISOS: Mapping[str, tuple[str, Mapping[str, bytes]]] = {
    **{case.name: (case.label, case.files) for case in CASES},
    **{name: ("LABEL", files) for name, (files, _) in REFUSING.items()},
    "coreos-generic": (
        "LABEL",
        {"boot/grub/grub.cfg": MENU, "LiveOS/x": b"", "images/pxeboot/initrd.img": b"i"},
    ),
    "esxi": ("ESXI-8", {"BOOT.CFG": b"kernel=/b.b00\nkernelopt=runweasel\nmodules=/a\n"}),
}
CONFIGS: Mapping[str, bytes] = {
    **{name: configs[-1].encode() for name, configs in VALID.items()},
    "alpine": archive(),
    "coreos-generic": VALID["flatcar"][-1].encode(),
    COREOS: VALID["flatcar"][-1].encode(),
}


def test_each_family_has_an_example() -> None:
    assert EXAMPLES.keys() == {COREOS, *(family.name for family in FAMILIES)}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example_edits_an_iso_of_its_family(
    run: Run, tmp_path: Path, live_iso: bytes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("family.iso").write_bytes(live_iso if name == COREOS else make_iso(name, tmp_path))
    options = shlex.split(EXAMPLES[name])
    for word in options:
        if not word.startswith("--"):
            Path(word.rpartition("=")[2]).write_bytes(CONFIGS.get(name, b""))
    done = run("customize", "family.iso", *options, "-o", "edited.iso")
    assert done.status == 0, done.errors
    assert Path("edited.iso").read_bytes() != Path("family.iso").read_bytes()
    inspected = json.loads(run("inspect", "--json", "edited.iso").output)
    assert inspected.get("family", COREOS) == name


def make_iso(name: str, directory: Path) -> bytes:
    """Return an ISO that is of a family."""
    if name == "unified-kernel":
        esp = make_esp({"EFI/Linux/os.efi": b"MZ signed"}, directory)
        return make("PARTICLE", {"readme": b""}, *ESP_OPTIONS, str(esp))
    label, files = ISOS[name]
    return make(label, {**BOOT, **files})

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.core.errors import BaseImageError, Unavailable
from image_service.core.images.canvas import spliced_minimal_canvas
from image_service.server.catalog.lifecycle.opening import open_base_image
from image_service.settings.os_images import OsImage
from tests.core.families.coreos.miniso_builder import MINISO, ROOM, add_minimal_iso, live_iso_with_minimal
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.core.formats.reading import read_layout
from tests.core.images.building import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.families.coreos.minimal_iso import MinimalIso
    from image_service.core.images.base_image import BaseImage

ISO = live_iso_with_minimal()
URL = "https://images.test/rootfs.img"
HASHED = 1  # check while the whole file is hashed: it is smaller than a MiB


class CountingInterruption(Interruption):
    """Counts its checks; a test may change something at each."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = 0

    def raise_if_interrupted(self) -> None:
        self.checks += 1
        super().raise_if_interrupted()


@attrs.define(eq=False)
class Opener:
    """Opens one file, with its sidecar."""

    directory: Path
    iso: Path = attrs.field(init=False)
    sidecar: Path = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.iso = self.directory / "base.iso"
        self.sidecar = self.directory / "rhcos-sidecar.json"

    @contextmanager
    def opened(
        self,
        content: bytes | None = None,
        interruption: Interruption | None = None,
        *,
        versions: tuple[str, ...] = ("4.17",),
        image_type: str = "full-iso",
    ) -> Iterator[BaseImage]:
        """Yield the base image, after writing the file if there is content."""
        if content is not None:
            self.iso.write_bytes(content)
        entry = OsImage("9.6.1-0", "x86_64", image_type, versions, self.iso.as_uri())
        base = open_base_image(entry, self.iso, self.sidecar, interruption or Interruption())
        try:
            yield base
        finally:
            base.file.close()

    def sidecar_content(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.sidecar.read_bytes())
        return found


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def minimal_of(base: BaseImage) -> MinimalIso:
    assert base.coreos.minimal is not None, base.coreos.no_minimal
    return base.coreos.minimal


def damaged(content: bytes, at: bytes) -> bytes:
    """Return the content with a flipped bit at the start of ``at``."""
    offset = content.index(at)
    return content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]


# The recipe of the minimal ISO.


def test_valid_minimal_recipe_is_kept(opener: Opener) -> None:
    with opener.opened(ISO) as base:
        assert base.iso == read_layout(ISO)
        assert base.coreos.no_minimal == ""
        assert base.sha256 == sha256(ISO).hexdigest()
        assert read(spliced_minimal_canvas(base, URL).extents.extents)
        assert opener.sidecar_content()["minimal_sha256"] == minimal_of(base).sha256


def test_verified_recipe_is_not_verified_again(opener: Opener) -> None:
    with opener.opened(ISO) as base:
        expected = base.iso
    never = Interruption()
    never.interrupt()  # hashing would check it
    with opener.opened(interruption=never) as base:
        assert base.iso == expected


def test_recipe_of_a_replaced_file_is_verified_again(opener: Opener) -> None:
    with opener.opened(ISO):
        pass
    counting = CountingInterruption()
    with opener.opened(live_iso_with_minimal(b"another rootfs\n"), counting) as base:
        assert minimal_of(base).size
    assert counting.checks > HASHED, "it has the same minimal ISO, but not the same bytes to make it of"


def test_file_written_to_in_place_is_verified_again_despite_its_date(opener: Opener) -> None:
    with opener.opened(ISO):
        status = opener.iso.stat()
    changed = damaged(ISO, b"kernel data")
    with opener.iso.open("r+b") as file:
        file.write(changed)
    os.utime(opener.iso, ns=(status.st_atime_ns, status.st_mtime_ns))
    with opener.opened() as base:
        assert base.sha256 == sha256(changed).hexdigest()
        assert base.coreos.minimal is None


@pytest.mark.parametrize("known", ["0" * 64, "x", None, 5])
def test_digest_of_another_recipe_is_ignored(opener: Opener, known: object) -> None:
    with opener.opened(ISO):
        sidecar_content = opener.sidecar_content()
    opener.sidecar.write_text(json.dumps({**sidecar_content, "minimal_sha256": known}))
    counting = CountingInterruption()
    with opener.opened(interruption=counting) as base:
        assert minimal_of(base).size
    assert counting.checks > 0
    assert opener.sidecar_content() == sidecar_content


RECIPE = ISO.index(b"MINISO\0\0")
BROKEN = {
    "never packed": (ISO[:RECIPE] + bytes(ROOM) + ISO[RECIPE + ROOM :], "does not begin with MINISO"),
    "xz": (damaged(ISO, b"\xfd7zXZ"), "xz stream"),
    "a copied file": (damaged(ISO, b"kernel data"), "SHA-256"),
    "digest": (damaged(ISO, bytes.fromhex(read_layout(ISO).minimal.sha256)), "SHA-256"),  # type: ignore[union-attr]
    "absent": (build_live_iso(), f"has no {MINISO}"),
    "no areas": (
        add_minimal_iso({path: data for path, data in live_files().items() if "kargs" not in path}),
        "no embed areas for kernel arguments",
    ),
    "no liveiso": (add_minimal_iso(live_files(kernel_arguments="quiet")), "coreos.liveiso="),
    "odd liveiso": (add_minimal_iso(live_files(kernel_arguments="coreos.liveiso=a;b")), "';' outside"),
    "no room": (
        add_minimal_iso(
            {
                **live_files(),
                "coreos/kargs.json": json.dumps(json.loads(live_files()["coreos/kargs.json"])).encode(),
            }
        ),
        "kargs.json needs",
    ),
}


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN)
def test_unusable_recipe_is_dropped_with_the_reason(opener: Opener, content: bytes, reason: str) -> None:
    for written in (content, None):
        with opener.opened(written) as base:
            assert base.coreos.minimal is None
            assert reason in base.coreos.no_minimal
            assert attrs.evolve(base.coreos, no_minimal="") == attrs.evolve(
                read_layout(content), minimal=None, no_minimal=""
            )
            assert base.sha256 == sha256(content).hexdigest()
        assert "minimal_sha256" not in opener.sidecar_content()


def test_verification_of_the_recipe_does_not_read_the_rootfs(opener: Opener) -> None:
    with opener.opened(damaged(ISO, b"rootfs data")) as base:
        assert minimal_of(base).size


def test_verification_of_the_recipe_is_interrupted(opener: Opener) -> None:
    with opener.opened(ISO):
        sidecar_content = opener.sidecar_content()
    opener.sidecar.write_text(json.dumps({**sidecar_content, "minimal_sha256": None}))
    before = open_files()
    stopped = Interruption()
    stopped.interrupt()
    with pytest.raises(Interrupted), opener.opened(interruption=stopped):
        pass
    assert open_files() == before


def test_file_that_changes_during_verification_is_unavailable(opener: Opener) -> None:
    class Meddler(CountingInterruption):
        """Writes to the file while its minimal ISO is made, not before."""

        def raise_if_interrupted(self) -> None:
            super().raise_if_interrupted()
            if self.checks == HASHED + 1:
                os.utime(opener.iso, ns=(0, 0))

    before = open_files()
    with pytest.raises(Unavailable, match="changed"), opener.opened(ISO, Meddler()):
        pass
    assert "minimal_sha256" not in opener.sidecar_content()
    assert open_files() == before


def test_disconnected_image_needs_no_recipe(opener: Opener) -> None:
    counting = CountingInterruption()
    with opener.opened(damaged(ISO, b"kernel data"), counting, image_type="disconnected-iso") as base:
        assert base.disconnected
    assert counting.checks == HASHED


# What else is to be known.


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (("4.9",), False),
        (("4.17.0",), False),
        (("4.17.99",), False),
        (("4.17",), False),
        (("4.18.0-alpha.1",), False),
        (("4.18.0-ec.0",), True),
        (("4.18.0-ec.4",), True),
        (("4.18.0-rc.1",), True),
        (("4.18",), True),
        (("4.18.0",), True),
        (("4.18.12",), True),
        (("4.20",), True),
        (("5.0",), True),
        (("4.18", "4.17"), True),
        (("4.17.3", "4.17", "4.16"), False),
    ],
)
def test_nmstatectl_is_needed_from_openshift_4_18_on(
    opener: Opener, versions: tuple[str, ...], *, expected: bool
) -> None:
    """Of several the highest decides, which comes first."""
    with opener.opened(ISO, versions=versions) as base:
        assert base.needs_nmstate is expected


def test_customized_image_is_refused_unless_disconnected(opener: Opener) -> None:
    customized = ISO.replace(b"ignition.platform.id=metal\n#", b"ignition.platform.id=other\n#")
    with pytest.raises(BaseImageError, match="is already customized"), opener.opened(customized):
        pass
    with opener.opened(customized, image_type="disconnected-iso") as base:
        assert base.coreos.customized


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_directory_or_fifo_is_refused_at_once(opener: Opener, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(opener.iso)
    else:
        opener.iso.mkdir()
    before = open_files()
    with pytest.raises(BaseImageError, match="not a regular file"), opener.opened():
        pass
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))

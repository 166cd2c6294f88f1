"""The naive splice is the image that the service composes, and shares no code with it."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from image_service.core.images.canvas import full_canvas
from image_service.core.images.compose import compose
from image_service.core.images.customization import Customization
from image_service.core.images.fingerprint import fingerprint
from image_service.server.standalone.sample import sample_iso
from image_service.tools.loadtest.fleet import splice
from image_service.tools.loadtest.fleet.splice import SplicedBase, make_config
from tests.core.images.building import base_image, bytes_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path) -> SplicedBase:
    path = tmp_path / "base.iso"
    path.write_bytes(sample_iso())
    return SplicedBase.open(path)


@pytest.mark.parametrize("config", [make_config("a", 1), b'{"x": "%b"}' % (b"y" * 150_000)])
def test_splice_is_what_the_service_composes(base: SplicedBase, config: bytes) -> None:
    with base_image(sample_iso()) as image:
        composed = bytes_of(compose(full_canvas(image), Customization(config, (), modified=None), "x.iso"))
    assert base.size == len(composed)
    assert base.read(0, base.size, config) == composed
    chance = random.Random(1)  # noqa: S311 - the same ranges in each run
    for _ in range(200):
        start, stop = sorted(chance.sample(range(base.size + 1), 2))
        assert base.read(start, stop, config) == composed[start:stop]


def test_range_touches_the_config_where_images_differ(base: SplicedBase) -> None:
    one, other = (base.read(0, base.size, make_config("a", answer)) for answer in (1, 2))
    differ = [offset for offset in range(base.size) if one[offset] != other[offset]]
    assert differ
    assert all(base.touches_config(offset, offset + 1) for offset in differ)
    assert not base.touches_config(0, 1024)


def test_base_without_an_area_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.iso"
    path.write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="has no embed area"):
        SplicedBase.open(path)


def test_configs_of_one_infra_env_differ_in_their_tokens_only() -> None:
    configs = [make_config(name, answer) for name, answer in (("a", 1), ("a", 2), ("b", 1))]
    assert len(set(configs)) == 3
    one, other, another = (fingerprint(Customization(config, (), modified=None)) for config in configs)
    assert one == other != another


def test_splice_imports_nothing_of_the_service() -> None:
    code = f"import runpy, sys; runpy.run_path({splice.__file__!r}); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("image_service")] == []

"""The order in which base images stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.concurrency.process_parts import PartsStack
from image_service.common.objects.s3_client import S3Options
from image_service.server.catalog.build_catalog import build_base_images
from image_service.server.catalog.derived.derived_images import DerivedImages
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.base_images import CatalogSettings, DownloadSettings, StorageSettings
from image_service.settings.remote import RemoteSettings
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from twisted.internet.epollreactor import EPollReactor


@ensure_deferred
async def test_derivations_that_are_waited_for_do_not_wait_for_an_origin(
    reactor: EPollReactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = DerivedImages.stop
    interrupted: list[bool] = []

    async def record_and_stop(derived: DerivedImages) -> None:
        assert images.catalog.remote is not None
        interrupted.append(images.catalog.remote.interruption.is_set)
        await stop(derived)

    monkeypatch.setattr(DerivedImages, "stop", record_and_stop)
    async with PartsStack(reactor) as parts:
        images = build_base_images(
            parts,
            CatalogSettings(),
            StorageSettings(data_dir=tmp_path),
            DownloadSettings(),
            OriginClient.from_settings(DownloadSettings()),
            RemoteSettings(),
            S3Options(),
            configured=(),
            is_leader=True,
        )
    assert interrupted == [True]

"""States of base images: what is served, refused and reported while some are ready and others are not."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.image_states import images_of, until
from tests.acceptance.service import run_service
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.core.formats.reading import fixture
from tests.server.catalog.origin import Origin, Reply, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

ISO = fixture("embed-areas-2022-02.iso")  # from which nothing has to be derived
SHA256 = hashlib.sha256(ISO).hexdigest()


@pytest.fixture
def origin() -> Iterator[Origin]:
    with running() as server:
        yield server


def entry(url: str, version: str) -> dict[str, str]:
    return {"version": version, "openshift_version": "4.17", "cpu_architecture": "x86_64", "url": url}


def test_bad_url_of_one_base_image_does_not_affect_the_others(tmp_path: Path, origin: Origin) -> None:
    good = {name: origin.serve(f"/{name}.iso", Reply(ISO)) for name in ("a", "b")}
    bad = origin.serve("/bad.iso", Reply(status=404)) + "?token=top-secret"
    entries = [entry(bad, "bad"), *(entry(url, name) for name, url in good.items())]
    delays = {"DOWNLOAD_RETRY_MIN": "3600", "DOWNLOAD_RETRY_MAX": "3600"}
    with run_service(tmp_path, entries, environment=delays) as service:
        for name in good:
            image = until(service, name, "ready")
            assert (image["size"], image["bytes_done"], image["sha256"]) == (len(ISO), len(ISO), SHA256)
            infra_env = service.register(name, {"ignition": {"version": "3.2.0"}})
            assert service.get_image(f"/byid/{infra_env}/{name}/x86_64/full.iso").status == 200
        failed = until(service, "bad", "failed")
        assert failed["url"] == bad.partition("?")[0]
        assert "answered with status 404" in failed["reason"]
        retry_at = datetime.strptime(failed["retry_at"], "%Y-%m-%dT%H:%M:%S%z")
        assert timedelta(minutes=20) < retry_at - datetime.now(UTC) <= timedelta(hours=1)
        infra_env = service.register("bad", {"ignition": {"version": "3.2.0"}})
        refused = service.get(f"/byid/{infra_env}/bad/x86_64/full.iso")
        assert refused.status == 503
        assert int(refused.headers["Retry-After"]) > 60
        assert "is failed: " in refused.json()["detail"]
        head = service.get("/images", method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert b"top-secret" not in service.get("/images").body + service.output


def test_image_is_degraded_and_served_without_xorriso(tmp_path: Path, origin: Origin) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    url = origin.serve("/a.iso", Reply(build_live_iso()))  # has no recipe of its minimal ISO
    with run_service(tmp_path, [entry(url, "a")], environment={"PATH": str(programs)}) as service:
        image = until(service, "a", "degraded")
        assert image["reason"] == (
            "the minimal ISO of the base image a (x86_64) could not be derived: xorriso is not installed;"
            " install the package xorriso"
        )
        assert image["retry_at"].endswith("Z")
        assert service.get("/health").status == 200
        infra_env = service.register("a", {"ignition": {"version": "3.2.0"}})
        assert service.get_image(f"/byid/{infra_env}/a/x86_64/full.iso").status == 200
        minimal = service.get(f"/byid/{infra_env}/a/x86_64/minimal.iso")
        assert (minimal.status, minimal.json()["detail"]) == (503, image["reason"])
        assert service.total(r'base_images{state="degraded"}') == 1
        assert service.total(r'base_images{state="failed"}') == 0
        assert b"xorriso is not installed; install the package xorriso: without it " in service.output


def test_health_is_200_with_one_ready_image_while_another_downloads(tmp_path: Path, origin: Origin) -> None:
    held = origin.serve("/slow.iso", Reply(ISO[:8192], promised=len(ISO), hold=True))
    quick = origin.serve("/quick.iso", Reply(ISO))
    with run_service(
        tmp_path,
        [entry(held, "slow"), entry(quick, "quick")],
        environment={"READY_WHEN": "any"},
    ) as service:
        slow = until(service, "slow", "downloading")
        assert slow["bytes_total"] in {None, len(ISO)}
        assert service.get("/health").status == 200
        answer = service.get("/boot-artifacts/slow/x86_64/rootfs.img")
        assert answer.status == 503
        assert "slow-x86_64.iso is downloading" in answer.json()["detail"]
        assert service.get("/boot-artifacts/quick/x86_64/rootfs.img").status == 200
        origin.released.set()


def test_start_with_stored_base_images_fetches_nothing(tmp_path: Path, origin: Origin) -> None:
    entries = [entry(origin.serve(f"/{name}.iso", Reply(ISO)), name) for name in "abc"]
    told = []
    for start in ("first", "second"):
        (tmp_path / start).mkdir()
        with run_service(
            tmp_path / start, entries, environment={"DATA_DIR": str(tmp_path / "data")}
        ) as service:
            for name in "abc":
                until(service, name, "ready")
            # Each process says since when it has the image ready.
            told.append([image | {"state_since": None} for image in images_of(service).values()])
    assert told[0] == told[1]
    assert len(origin.requests) == 3

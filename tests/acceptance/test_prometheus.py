"""A real Prometheus scrapes a real service, and raises three alerts; a minute of the rules lasts a second."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.acceptance.prometheus import PATIENCE_SECONDS, scraping, shortened
from tests.acceptance.service import SERVE, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.acceptance.upstream import Reply, running
from tests.core.formats.filesystems.iso_builder import build_live_iso

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

VERSION = "prometheus"


def test_durations_of_the_rules_are_shortened() -> None:
    assert shortened("rate(a[5m]) / rate(b{c=~'5..'}[3d])\nfor: 1h\n") == (
        "rate(a[5s]) / rate(b{c=~'5..'}[4320s])\nfor: 60s\n"
    )


def test_prometheus_raises_alerts_about_failing_upstream_and_ended_service(
    tmp_path: Path, certificate: Certificate
) -> None:
    iso = tmp_path / "base.iso"
    iso.write_bytes(build_live_iso())
    with (
        running(certificate) as upstream,
        run_service(
            tmp_path, [os_image(iso, VERSION)], command=SERVE, environment=upstream.environment
        ) as service,
        scraping(tmp_path, service.url.removeprefix("http://")) as prometheus,
    ):
        known = upstream.register(version=VERSION)
        upstream.unknown = Reply(status=500)

        def request(infra_env_id: str) -> int:
            return service.get(f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso", method="HEAD").status

        def is_scraped() -> bool:
            request(known)
            return bool(prometheus.ask("query?query=sum(assisted_image_service_build_info)")["result"])

        def is_firing_after_errors() -> bool:
            assert request(str(uuid4())) in {502, 504}
            return expected <= prometheus.firing().keys()

        wait_for(is_scraped, PATIENCE_SECONDS)
        expected = {("ImageServiceErrors", "critical"), ("ImageServiceUpstreamFailing", "warning")}
        assert not expected & prometheus.firing().keys()
        wait_for(is_firing_after_errors, PATIENCE_SECONDS)
        annotations = prometheus.firing()["ImageServiceErrors", "critical"]
        assert re.fullmatch(r"images answers [\d.]+% of its requests with 5xx", annotations["summary"])
        assert (
            annotations["runbook_url"]
            == "https://image-service.example.com/docs/alerts.md#imageserviceerrors"
        )
        service.process.terminate()
        prometheus.wait_until_firing("ImageServiceAbsent", "critical")
        health = {rule["health"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}
        assert health == {"ok"}

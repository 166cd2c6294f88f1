"""The deletion of an upload."""

from __future__ import annotations

import time

from image_service.common.http.origins import AllowedOrigins, parse_origin
from image_service.common.transfer.client import TransferClient
from image_service.common.transfer.uploaded_parts import delete_parts
from tests.common.transfer.manifests import SECRET, make_manifest
from tests.server.catalog.origin import Reply, running


def test_nothing_is_deleted_after_the_deadline() -> None:
    with running() as store:
        manifest = make_manifest(store.url(""), 100_000)
        client = TransferClient(AllowedOrigins(frozenset({parse_origin(store.url(""))})))
        for name in ("/0", "/1", "/manifest"):
            store.serve(name, Reply(status=204))
        notes = delete_parts(manifest, client, time.monotonic() - 1)
        assert store.requests == []
        assert notes == [f"not deleted: {store.url(name)}" for name in ("/0", "/1", "/manifest")]
        assert SECRET not in str(notes)
        assert delete_parts(manifest, client, time.monotonic() + 600) == []
        assert len(store.requests) == 3

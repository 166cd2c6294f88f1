"""The byte server: boot images over HTTP, and what surrounds them."""

# The modules that `jobs` may import; `tests/test_architecture.py` checks it.
FOR_JOBS = (
    "catalog.build_catalog",
    "catalog.catalog",
    "catalog.derived.derived_images",
    "catalog.download.downloader",
    "catalog.download.origin_client",
    "catalog.lifecycle.image_fetcher",
    "catalog.lifecycle.opening",
    "catalog.lifecycle.signature",
    "catalog.storage.data_dir",
    "catalog.storage.digest",
    "http.dates",
    "http.request_id",
    "http.respond",
    "http.response",
    "observability.process",
    "serving.digests",
    "snapshots.storage.encryption",
    "streams.streams",
    "web_api.authentication",
    "web_api.messages",
    "web_api.operations",
    "web_api.request_content",
    "web_api.resource",
    "web_api.router",
)

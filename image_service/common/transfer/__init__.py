"""Uploads that a manifest describes: manifests and their XML, allowed origins, requests to them."""

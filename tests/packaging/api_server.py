"""A stand-in for Kubernetes' API server that has a few objects, for Helm's function ``lookup``."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.packaging.manifests import Manifest

_KINDS = {
    "v1": ("ConfigMap", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "policy/v1": ("PodDisruptionBudget",),
}


def _base(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _resource(kind: str) -> Manifest:
    return {
        "name": f"{kind.lower()}s",
        "singularName": "",
        "namespaced": True,
        "kind": kind,
        "verbs": ["get"],
    }


def _documents(objects: list[Manifest]) -> Mapping[str, Any]:
    """Return each path with its document: what an API server says of itself, and the objects."""
    groups = [
        {
            "name": version.partition("/")[0],
            "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
        }
        for version in _KINDS
        if version != "v1"
    ]
    found: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.4"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": groups},
    }
    for version, kinds in _KINDS.items():
        resources = [_resource(kind) for kind in kinds]
        found[_base(version)] = {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }
    for each in objects:
        plural = _resource(each["kind"])["name"]
        path = f"{_base(each['apiVersion'])}/namespaces/boot/{plural}/{each['metadata']['name']}"
        found[path] = each
    return found


@contextmanager
def serving(*objects: Manifest) -> Iterator[str]:
    """Serve Secrets and Deployments of the namespace ``boot``; yield the URL."""
    documents = _documents(list(objects))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = documents.get(self.path.partition("?")[0])
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            body = json.dumps(document or missing).encode()
            self.send_response(200 if document else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

"""Checks of Kubernetes manifests that no schema makes: references to each other and to the service's code."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import yaml

from image_service.server.admin.monitoring import PROBES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Manifest: TypeAlias = dict[str, Any]

SPARE_SECONDS = 5
HUNG_SECONDS = 10
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_BOUNDS = ("DATA_DIR_MAX_BYTES", "REMOTE_CACHE_MAX_BYTES", "SNAPSHOT_STORE_BYTES")
_GIB = 1 << 30


def parse_manifests(text: str) -> list[Manifest]:
    """Return the objects of YAML documents."""
    return [document for document in yaml.safe_load_all(text) if document]


@attrs.frozen
class Installation:
    """The objects of one installation, with one Deployment of one container.

    Args:
        manifests: the objects.
        config_maps: the names of ConfigMaps that are there without them.
    """

    manifests: list[Manifest]
    config_maps: frozenset[str] = frozenset()

    def of_kind(self, kind: str) -> list[Manifest]:
        """Return the objects of a kind."""
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def names(self, kind: str) -> set[str]:
        """Return the names of the objects of a kind."""
        return {manifest["metadata"]["name"] for manifest in self.of_kind(kind)}

    @property
    def deployment(self) -> Manifest:
        """The spec of the Deployment."""
        (found,) = self.of_kind("Deployment")
        spec: Manifest = found["spec"]
        return spec

    @property
    def pod(self) -> Manifest:
        """The spec of its pods."""
        spec: Manifest = self.deployment["template"]["spec"]
        return spec

    @property
    def container(self) -> Manifest:
        """Their container."""
        (found,) = self.pod["containers"]
        container: Manifest = found
        return container

    @property
    def ports(self) -> dict[str, int]:
        """The ports of the container, by name."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def plain_variables(self) -> dict[str, str]:
        """The variables whose values are in the manifest."""
        return {entry["name"]: entry["value"] for entry in self.container["env"] if "value" in entry}

    @property
    def secret_variables(self) -> dict[str, tuple[str, str]]:
        """The Secret and key of each variable that has its value from there."""
        references = self._secret_references().items()
        return {name: (reference["name"], reference["key"]) for name, reference in references}

    def _secret_references(self) -> dict[str, Manifest]:
        entries = (entry for entry in self.container["env"] if "secretKeyRef" in entry.get("valueFrom", {}))
        return {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in entries}

    @property
    def secret_keys(self) -> set[tuple[str, str]]:
        """Each Secret that is referred to, with each of its keys."""
        volumes = [volume["secret"] for volume in self.pod["volumes"] if "secret" in volume]
        mounted = {(secret["secretName"], item["key"]) for secret in volumes for item in secret["items"]}
        return mounted | set(self.secret_variables.values())

    @property
    def optional_secret_keys(self) -> set[tuple[str, str]]:
        """Those of them that may be absent."""
        references = self._secret_references().values()
        return {(each["name"], each["key"]) for each in references if each.get("optional")}

    def files(self) -> dict[str, str | None]:
        """Return the path of each file in the container, with its content where the manifests have it."""
        found: dict[str, str | None] = {}
        contents = {each["metadata"]["name"]: each["data"] for each in self.of_kind("ConfigMap")}
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            source = volume.get("configMap") or volume.get("secret") or {}
            data = contents.get(source.get("name", ""), {})
            items = source.get("items") or [{"path": key, "key": key} for key in data]
            found |= {f"{mount['mountPath']}/{item['path']}": data.get(item["key"]) for item in items}
        return found

    def faults(self) -> Iterator[str]:
        """Yield each reference that leads nowhere, and each number that does not fit another."""
        yield from self._selector_faults()
        yield from self._port_faults()
        yield from self._volume_faults()
        yield from self._probe_faults()
        yield from self._size_faults()
        yield from self._security_faults()

    def _selector_faults(self) -> Iterator[str]:
        labels = self.deployment["template"]["metadata"]["labels"].items()
        selectors = [self.deployment["selector"]["matchLabels"]]
        selectors += [service["spec"]["selector"] for service in self.of_kind("Service")]
        selectors += [each["spec"]["selector"]["matchLabels"] for each in self.of_kind("PodDisruptionBudget")]
        selectors += [each["spec"]["podSelector"]["matchLabels"] for each in self.of_kind("NetworkPolicy")]
        selectors += [
            spread["labelSelector"]["matchLabels"] for spread in self.pod.get("topologySpreadConstraints", [])
        ]
        yield from (f"no pod has {selector}" for selector in selectors if not selector.items() <= labels)
        for scaler in self.of_kind("HorizontalPodAutoscaler"):
            if scaler["spec"]["scaleTargetRef"]["name"] not in self.names("Deployment"):
                yield "the autoscaler scales nothing"
            if "replicas" in self.deployment:
                yield "the Deployment sets the replicas that the autoscaler changes"
            if "cpu" not in self.container["resources"]["requests"]:
                yield "the autoscaler needs a request of CPU"

    def _port_faults(self) -> Iterator[str]:
        services = {each["metadata"]["name"]: each["spec"]["ports"] for each in self.of_kind("Service")}
        named = [port["targetPort"] for ports in services.values() for port in ports]
        rules = [rule for policy in self.of_kind("NetworkPolicy") for rule in policy["spec"]["ingress"]]
        allowed = [port["port"] for rule in rules for port in rule["ports"]]
        yield from (f"the container has no port {name}" for name in {*named, *allowed} - self.ports.keys())
        yield from (f"the NetworkPolicy closes port {name}" for name in self.ports.keys() - set(allowed))
        for ingress in self.of_kind("Ingress"):
            for path in (path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]):
                backend = path["backend"]["service"]
                offered = [port["name"] for port in services.get(backend["name"], [])]
                if backend["port"]["name"] not in offered:
                    yield f"no Service has what the Ingress leads to: {backend}"
        listening = {"images": "LISTEN_PORT", "plain": "HTTP_LISTEN_PORT", "admin": "ADMIN_LISTEN"}
        for name, variable in listening.items():
            port = self.plain_variables.get(variable, "").rpartition(":")[2]
            if port != str(self.ports.get(name, "")):
                yield f"{variable} is not the container's port {name}"

    def _volume_faults(self) -> Iterator[str]:
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        mounted = {mount["name"] for mount in self.container["volumeMounts"]}
        yield from (f"volume {name} is not there, or not mounted" for name in mounted ^ volumes.keys())
        config_maps = self.names("ConfigMap") | self.config_maps
        for volume in volumes.values():
            if "configMap" in volume and volume["configMap"]["name"] not in config_maps:
                yield f"there is no ConfigMap {volume['configMap']['name']}"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and claim not in self.names("PersistentVolumeClaim"):
                yield f"there is no claim {claim}"
            if "secret" in volume and volume["secret"]["defaultMode"] != 0o440:
                yield f"everybody may read the Secret in volume {volume['name']}"
        if self.pod["serviceAccountName"] not in self.names("ServiceAccount"):
            yield f"there is no ServiceAccount {self.pod['serviceAccountName']}"
        files = {value.removeprefix("@") for value in self.plain_variables.values()}
        named = {name for name in files if name.startswith("/etc/image-service/")}
        yield from (f"no volume has {name}" for name in sorted(named - self.files().keys()))
        yield from (f"no variable names {name}" for name in sorted(self.files().keys() - named))

    def _probe_faults(self) -> Iterator[str]:
        expected = {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/health"}
        scheme = "HTTPS" if "HTTPS_KEY_FILE" in self.plain_variables else "HTTP"
        for probe, path in expected.items():
            get = self.container[probe]["httpGet"]
            if get != {"path": path, "port": "images", "scheme": scheme} or path not in PROBES:
                yield f"{probe} requests {get}"
        if self.container["livenessProbe"]["terminationGracePeriodSeconds"] > HUNG_SECONDS:
            yield "a hung process is killed late"
        stopping = self.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain = [int(self.plain_variables[name]) for name in ("DRAIN_DELAY", "DRAIN_TIMEOUT")]
        if self.pod["terminationGracePeriodSeconds"] < stopping + sum(drain) + SPARE_SECONDS:
            yield "the pod is killed before its shutdown ends"

    def _size_faults(self) -> Iterator[str]:
        bounds: Mapping[str, str] = self.plain_variables
        in_database = {"SNAPSHOT_STORE_BYTES"} if "DATABASE_URL" in self.secret_variables else set()
        needed = sum(int(bounds.get(name, 0)) for name in _BOUNDS if name not in in_database)
        (data,) = (volume for volume in self.pod["volumes"] if volume["name"] == "data")
        claims = [each["spec"]["resources"]["requests"] for each in self.of_kind("PersistentVolumeClaim")]
        size = data["emptyDir"]["sizeLimit"] if "emptyDir" in data else claims[0]["storage"]
        if gib(size) * _GIB < needed * 1.1:
            yield f"/data has {size} for {needed} bytes and a tenth"
        (mount,) = (mount for mount in self.container["volumeMounts"] if mount["name"] == "data")
        if mount["mountPath"] != self.plain_variables["DATA_DIR"]:
            yield "DATA_DIR is not on the volume"

    def _security_faults(self) -> Iterator[str]:
        context = self.pod["securityContext"]
        if not context["runAsNonRoot"] or context["seccompProfile"] != {"type": "RuntimeDefault"}:
            yield "the pod is not restricted"
        if self.container["securityContext"] != RESTRICTED:
            yield "the container is not restricted"
        if self.pod["automountServiceAccountToken"]:
            yield "the container gets a token that it does not need"


def gib(quantity: str) -> int:
    """Return the number in a quantity of whole GiB."""
    found = re.fullmatch(r"(\d+)Gi", quantity)
    assert found, quantity
    return int(found[1])


def placed(path: str, root: Path) -> Path:
    """Return where a test puts a file that the container has at an absolute path."""
    return root / PurePosixPath(path).relative_to("/")

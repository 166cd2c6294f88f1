"""Prints the SBOM of an installed product as CycloneDX JSON: ``.ci/sbom.py PYTHON LOCK [SUBJECT]``.

``cyclonedx-py`` describes the packages of an environment; this adds their hashes from the lock, and makes
the product the subject: image-service, or image-toolkit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main(python: str, lock: str, subject: str = "image-service") -> None:
    """Print the SBOM of the environment of `python`; exit with the reason if it is not that of the lock."""
    command = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", python)
    described = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603 - a fixed program
    document = json.loads(described.stdout)
    complete(document, read_lock(Path(lock).read_text()), subject)
    text = json.dumps(document, indent=2, sort_keys=True)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault:
        sys.exit(f"the SBOM is not valid: {fault}")
    print(text)  # noqa: T201 - the output


def read_lock(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the SHA-256 digests by name and version."""
    entries = re.findall(r"^([a-z0-9.-]+)==(\S+)(.*(?:\n +.*)*)", text, re.MULTILINE)
    return {(name, version): re.findall("sha256:([0-9a-f]{64})", rest) for name, version, rest in entries}


def complete(document: dict[str, Any], locked: dict[tuple[str, str], list[str]], subject: str) -> None:
    """Make the product the subject of an SBOM, and add the digests of the other components."""
    components = {component["name"]: component for component in document["components"]}
    product = components.pop(subject)
    product.pop("externalReferences")  # the wheel's path on this machine
    product |= {"type": "application", "purl": f"pkg:generic/{subject}@{product['version']}"}
    document["metadata"]["component"] = product
    document["components"] = list(components.values())
    for name, component in components.items():
        normal = re.sub(r"[-_.]+", "-", name).lower()
        digests = locked.get((normal, component["version"]))
        if not digests:
            sys.exit(f"{name} {component['version']} is installed, and not locked")
        component.setdefault("externalReferences", []).append(
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{normal}/{component['version']}/",
                "comment": "files that the lock allows",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
            }
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

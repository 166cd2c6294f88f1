"""usage: python .ci/statement.py KEY COMMIT <SHA256SUMS: print a signed statement of released files.

It is SLSA provenance in a Sigstore bundle, in the form of the statements of images (docs/provenance.md).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from image_service import __version__
from image_service.core.provenance.dsse import load_signing_key, sign_bundle

if TYPE_CHECKING:
    from collections.abc import Iterable


def make_statement(sums: Iterable[str], commit: str) -> dict[str, Any]:
    """Return the statement of files that a commit was built to.

    Args:
        sums: the lines of sha256sum.
        commit: of Git.
    """
    lines = [line.split() for line in sums]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in lines],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:image-service:release:v1",
                "externalParameters": {"version": __version__},
                "resolvedDependencies": [{"name": "sources", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": "urn:image-service"}},
        },
    }


if __name__ == "__main__":
    _key, _commit = sys.argv[1:]
    _statement = json.dumps(make_statement(sys.stdin, _commit), sort_keys=True).encode()
    sys.stdout.buffer.write(sign_bundle(load_signing_key(Path(_key).read_bytes()), _statement))

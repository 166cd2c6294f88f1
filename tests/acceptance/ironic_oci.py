"""Fetches an image as ironic's conductor does, by ironic's own code; run by a Python that has ironic.

usage: PYTHON ironic_oci.py IMAGE DIGEST USER PASSWORD CA_FILE OUTPUT

It asks what the tag of IMAGE stands for, and downloads the manifest DIGEST.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ironic.common.image_service import OciImageService  # type: ignore[import-not-found]
from ironic.conf import CONF  # type: ignore[import-not-found]

for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # which requests prefers to what it is told
    os.environ.pop(name, None)
image, digest, user, password, ca_file, output = sys.argv[1:]
CONF([], project="ironic", default_config_files=[])
CONF.set_override("webserver_verify_ca", ca_file)
CONF.set_override("verify_ca", ca_file, group="oci")
service = OciImageService()
service.set_image_auth(image, {"username": user, "password": password})
found = service.identify_specific_image(image)
named = f"{image.rpartition(':')[0]}@{digest}"
with Path(output).open("wb") as file:
    service.download(named, file)
shown = service.show(named)
print(json.dumps({"found": found, "shown": shown, "checksum": service.transfer_verified_checksum}))  # noqa: T201

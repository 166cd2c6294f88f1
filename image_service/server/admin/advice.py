"""What to do about failures, by their cause (see `Failure`): for those who run the service."""

from __future__ import annotations

from image_service.server.transport.exchanges.failures import ABORTED, TLS, WARNING

_LOG = "Find the request in the log by its identifier."
_URL = "Correct the URL, or make a new one with New image or at assisted-service."
ADVICE = {
    "base-image-unknown": (
        "Add the version to OS_IMAGES and reload the service, or change the version of the infra-env."
    ),
    "base-image-refused": "Read the reason under Base images; replace the file, or correct its digest.",
    "conflict": "Ask again: the image has changed meanwhile.",
    "customization-invalid": "Change the infra-env as the reason says.",
    "config-invalid": "Correct the config of the infra-env at the place that the reason names.",
    "forbidden": "Use credentials that may read this infra-env: make a new URL or link.",
    "gone": "Make a new short link: this one has expired or was revoked.",
    "host-misdirected": "Use an address of the service in the URL, not another name.",
    "ignition-invalid": "Correct the Ignition config of the infra-env at the place that the reason names.",
    "ignition-too-large": "Make the Ignition config smaller, or fetch its large files by URL.",
    "kernel-arguments-too-large": "Remove kernel arguments from the infra-env.",
    "not-found": _URL,
    "plain-http": "Use https:// in the URL, or set HTTP_LISTEN_PORT for clients without TLS.",
    "ramdisk-too-large": "Make the static network of the infra-env smaller.",
    "range-not-satisfiable": "Have the client mount the image again: its size has changed.",
    "request-timeout": "Look for packet loss between the client and the service.",
    "store-failed": "Free space in DATA_DIR, or repair its file system; see the log.",
    "too-many-wrong-codes": "Find out who guesses links at this address.",
    "unauthorized": "Make a new URL or link: the token is absent, wrong or has expired.",
    "unavailable": "Nothing, if it passes: clients ask again. Else see the sentence at the top of this page.",
    "upstream-failed": "Read the log of assisted-service: it fails, or cannot be reached.",
    "upstream-queue-full": "Find out why assisted-service is slow, or raise UPSTREAM_CONCURRENCY.",
    "upstream-timeout": "Find out why assisted-service is slow, or raise UPSTREAM_TIMEOUT.",
    WARNING: "The response was right, but the boot may fail: do what the reason says.",
    f"{ABORTED}client-gone": (
        "Nothing, if the client reads on: many clients close a connection that they do not need."
    ),
    f"{ABORTED}no-progress": "Look at the client and the network to it: it has stopped reading.",
    f"{ABORTED}too-slow": "Look at the network to the client: it reads too slowly to keep a slot.",
    f"{ABORTED}shutdown": "Nothing: the service was stopped, and clients read on at its next start.",
    f"{ABORTED}disk-failed": "Check the disk of DATA_DIR; see the log.",
    f"{ABORTED}origin-failed": "Check the origin of the remote base image, and the network to it.",
    f"{ABORTED}short-read": "Find out who has changed the file of the base image; fetch it again.",
    f"{TLS}not-trusted": "Install the authority of HTTPS_CERT_FILE in the client, or use HTTP_LISTEN_PORT.",
    f"{TLS}protocol-version": "Update the client's firmware, or use HTTP_LISTEN_PORT.",
    f"{TLS}no-shared-cipher": "Set TLS_LEGACY_CIPHERS, or update the client's firmware.",
    f"{TLS}plain-http": "Use https:// in the URL, or HTTP_LISTEN_PORT.",
    f"{TLS}not-tls": "Find out what connects: it does not speak HTTPS.",
    f"{TLS}timeout": "Look for packet loss between the client and the service.",
    f"{TLS}closed": "Check that the client trusts the certificate; a port scan looks the same.",
    f"{TLS}protocol-error": "Update the client's firmware, or use HTTP_LISTEN_PORT.",
}


def advise(cause: str) -> str:
    """Return what to do about failures of a cause."""
    return ADVICE.get(cause, _LOG)

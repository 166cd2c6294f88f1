"""Kinds of images, whose URLs ``--kind`` chooses."""

from __future__ import annotations

URLS_OF_KINDS = {
    "iso": {"iso", "iso_sha256", "config_iso"},
    "minimal-iso": {"minimal_iso", "minimal_iso_sha256"},
    "ipxe": {"ipxe_script"},
    "pxe": {"kernel", "initrd", "rootfs"},
}
"""Names of an infra-env's URLs, by what the option takes."""

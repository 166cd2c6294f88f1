"""All hostile files, in one tuple; each verb must refuse each of them."""

from __future__ import annotations

from tests.toolkit.corpus import microsoft, others, qcow2, vmdk

HOSTILE = (*qcow2.HOSTILE, *vmdk.HOSTILE, *microsoft.HOSTILE, *others.HOSTILE)

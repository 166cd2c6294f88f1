"""What to do about failures."""

from __future__ import annotations

import inspect

from image_service.core import errors
from image_service.server.admin import advice
from image_service.server.transport.exchanges.failures import ABORTED, TLS, WARNING
from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure

CODES = {each.code for _, each in inspect.getmembers(errors, inspect.isclass) if hasattr(each, "code")}
ENDS = {f"{ABORTED}{each.value}" for each in AbortReason} | {
    f"{TLS}{each.value}" for each in HandshakeFailure
}


def test_advice_is_for_causes_that_exist() -> None:
    assert set(advice.ADVICE) <= CODES | ENDS | {WARNING}


def test_each_end_has_advice_and_other_causes_name_the_log() -> None:
    assert {each for each in ENDS if "log" in advice.advise(each)} == {
        f"{ABORTED}internal-error",
        f"{ABORTED}disk-failed",
    }
    assert advice.advise("internal-error") == "Find the request in the log by its identifier."

"""Refused operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from image_service.jobs.ec2.errors import Ec2Error

if TYPE_CHECKING:
    from tests.jobs.conversion_tasks.operating import Operating


def refusal(
    operating: Operating, operation: str, parameters: dict[str, Any], *, tenant: str = "org-1"
) -> str:
    """Return the code of the error of an operation."""
    with pytest.raises(Ec2Error) as refused:
        operating.call(operation, parameters, tenant=tenant)
    return refused.value.error_code

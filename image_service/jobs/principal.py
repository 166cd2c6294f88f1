"""Senders of requests, and their tenants. Pure."""

from __future__ import annotations

import attrs

DEFAULT_TENANT = ""
"""The tenant of requests without authentication. Others are ``org-`` and the value of a claim."""


def tenant_of_name(name: str) -> str:
    """Return the tenant of a name in tokens and access keys; that of "" is the default tenant."""
    return f"org-{name}" if name else DEFAULT_TENANT


def name_of_tenant(tenant: str) -> str:
    """Return the name of a tenant in tokens; "" of the default tenant."""
    return tenant.removeprefix("org-")


@attrs.frozen
class Principal:
    """The sender of a request.

    Args:
        tenant: whose composes and jobs it sees.
        is_operator: its workers may serve all tenants.
        is_built_in: it is the worker that this process has started, whose files are on this machine.
    """

    tenant: str = DEFAULT_TENANT
    is_operator: bool = False
    is_built_in: bool = False

"""Admits tokens, and finds their tenants. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Forbidden, TenantMissing
from image_service.jobs.principal import DEFAULT_TENANT, Principal, name_of_tenant, tenant_of_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.settings.jobs.tenants import AccessRule


@attrs.frozen
class AccessList:
    """Admits claims.

    Args:
        rules: one that admits the claims is enough; None: all are admitted, and none is an operator's.
        tenant_fields: names of claims; the first that is a string, and not empty, names the tenant.
    """

    rules: Sequence[AccessRule] | None
    tenant_fields: Sequence[str]

    def admit(self, claims: Mapping[str, object]) -> Principal:
        """Return the principal of claims that are verified.

        Raises:
            Forbidden: no rule admits them.
            TenantMissing: they name no tenant, and are not an operator's.
        """
        fitting = [rule for rule in self.rules or () if _is_admitted(claims.get(rule.claim), rule)]
        if self.rules is not None and not fitting:
            raise Forbidden("the access list does not admit the token")
        is_operator = any(rule.is_operator for rule in fitting)
        names = (name for field in self.tenant_fields if isinstance(name := claims.get(field), str) and name)
        if name := next(names, None):
            return Principal(tenant_of_name(name), is_operator)
        if is_operator:
            return Principal(DEFAULT_TENANT, is_operator)
        raise TenantMissing(f"the token names no tenant in {' or '.join(self.tenant_fields)}, as a string")

    def max_bytes_of(self, tenant: str) -> int | None:
        """Return the bytes that a tenant may keep by the first rule that says so; None: no rule does."""
        name = name_of_tenant(tenant)
        return next(
            (
                rule.max_bytes
                for rule in self.rules or ()
                if rule.max_bytes and rule.claim in self.tenant_fields and _is_admitted(name, rule)
            ),
            None,
        )


def _is_admitted(value: object, rule: AccessRule) -> bool:
    return isinstance(value, str) and value.isprintable() and rule.pattern.fullmatch(value) is not None

"""Delete the encryption keys of a tenant, which makes everything that they encrypted unreadable."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from waystation.client.search_attributes import TENANT
from waystation.core import ids
from waystation.core.errors import InvalidConfiguration
from waystation.core.payload import JsonObject
from waystation.history import OWNED_TYPES, read_owner
from waystation.storage import USER_KEYS_VARIABLE, find_user_keys_of

_OPEN = f"WorkflowType IN {OWNED_TYPES} AND ExecutionStatus = 'Running'"


@dataclass(kw_only=True, slots=True)
class DeletedTenantKeys:
    """The result of deleting the keys of a tenant."""

    tenant: str
    dry_run: bool
    """Whether nothing was changed. The other fields then name what would be changed."""
    stopped: list[str] = field(default_factory=list)
    """Workflow IDs of the tenant's invocations, sessions and state that were running and were terminated."""
    keys: int = 0
    """Number of deleted keys: those of the tenant, and of its users in each app."""

    def to_json(self) -> JsonObject:
        """Return the result as JSON."""
        return asdict(self)


async def delete_tenant_keys(temporal: Client, tenant: str, *, dry_run: bool = False) -> DeletedTenantKeys:
    """Terminate a tenant's workflows, and delete the keys of the tenant and of its users.

    Histories, artifacts and memories stay where they are, but nobody can read them, nor copies of them.

    Raises:
        ValueError: The name of the tenant is not valid.
        InvalidConfiguration: There is no store of user keys.
        StoreFailed: The store of user keys is not available.
    """
    ids.app_key("", tenant)  # checks the name
    if (keys := find_user_keys_of(temporal)) is None:
        raise InvalidConfiguration(USER_KEYS_VARIABLE, "", "is not set. Set it to the workers' store of user keys.")
    deleted = DeletedTenantKeys(tenant=tenant, dry_run=dry_run)
    await _stop(temporal, deleted)
    if not dry_run:
        await keys.retire_tenant(tenant)
        await asyncio.sleep(keys.cache_s)
        await _stop(temporal, deleted)  # what began in the meantime may use a retired key
    deleted.keys = await keys.delete_tenant(tenant, dry_run=dry_run)
    return deleted


async def _stop(temporal: Client, deleted: DeletedTenantKeys) -> None:
    async for id in _find_open(temporal, deleted.tenant):
        if not deleted.dry_run:
            try:
                await temporal.get_workflow_handle(id).terminate(reason="The keys of the tenant are deleted.")
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended
                    raise
                continue
        deleted.stopped.append(id)


async def _find_open(temporal: Client, tenant: str) -> AsyncIterator[str]:
    async for execution in temporal.list_workflows(_OPEN):
        # The attribute saves reading the inputs of other tenants. Anyone may choose an ID that looks like a tenant's.
        named = execution.typed_search_attributes.get(TENANT)
        owner = await read_owner(temporal, execution) if named in (tenant, None) else None
        if tenant == (owner.tenant if owner else named):
            yield execution.id

"""A namespace with very new search attributes."""

import uuid

from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from verification.cluster.temporal_cluster import create_search_attributes
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer


async def test_a_start_waits_for_new_search_attributes(
    server: EmbeddedServer,
) -> None:
    """The client sends the start again once the server has read them."""
    client = await AgentClient.connect(address=server.address, namespace=f"new-{uuid.uuid4()}")
    request = RegisterNamespaceRequest(namespace=client.temporal.namespace)
    request.workflow_execution_retention_period.FromSeconds(86_400)
    await client.temporal.workflow_service.register_namespace(request)
    await create_search_attributes(client.temporal)
    invocation = await client.start("payer", "go")
    attributes = (await invocation.handle.describe()).search_attributes
    assert attributes["WaystationAgent"] == ["payer"]

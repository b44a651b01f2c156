"""A namespace whose search attributes were created a moment ago."""

import uuid

from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from tests.cluster.temporal_cluster import create_search_attributes
from waystation.client import AgentClient
from waystation.embedded import EmbeddedServer


async def test_an_invocation_starts_with_search_attributes_that_the_server_does_not_accept_yet(
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

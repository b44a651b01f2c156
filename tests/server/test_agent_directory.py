"""The directory of agents on a real server."""

from datetime import timedelta

import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest

from tests.server.conftest import empty_server
from waystation.client import AgentDirectory, agent_directory, connect
from waystation.core.errors import UnknownAgent


@pytest.mark.slow
async def test_an_announcement_waits_for_a_stuck_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker announces its agent although another one was killed with the directory's workflow task."""
    monkeypatch.setattr(agent_directory, "GRACE_S", ())
    monkeypatch.setattr(agent_directory, "SETTLED_S", -60)  # the directory is new
    monkeypatch.setattr(agent_directory, "TASK_TIMEOUT", timedelta(seconds=1))
    async with empty_server() as server:
        client = await connect(address=server.address)
        await AgentDirectory(client).announce({"clerk": {}}, task_queue="killed")
        request = PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name="killed"))
        assert (await client.workflow_service.poll_workflow_task_queue(request)).task_token
        await AgentDirectory(client).announce({"teller": {}}, task_queue="killed")
        await AgentDirectory(client).check("teller")
        with pytest.raises(UnknownAgent, match="announced: clerk, teller"):
            await AgentDirectory(client).check("nobody")


async def test_a_directory_that_a_running_worker_created_is_complete_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the database was emptied, other workers check only once a minute whether they are still announced."""
    monkeypatch.setattr(agent_directory, "SETTLED_S", -60)
    async with empty_server() as server:
        client = await connect(address=server.address)
        directory = AgentDirectory(client)
        await directory.announce({"clerk": {}}, task_queue="nobody", again=True)
        assert await directory.is_announced("teller")
        monkeypatch.setattr(agent_directory, "RESETTLED_S", -60)
        assert not await directory.is_announced("teller")

"""Workers of several versions serve one task queue while a new one is rolled out."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.agents import Till
from tests.server.approvals.asking import payer
from tests.server.conftest import Serve


@workflow.defn
class Newer:
    """Stands for an invocation of a version that has one activity more."""

    @workflow.run
    async def run(self, queue: str, given: Any) -> None:
        """Run the activity on any worker that polls the queue."""
        await workflow.execute_activity(
            "look_into_it",
            given,
            task_queue=queue,
            schedule_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


async def test_a_worker_takes_no_activity_that_it_does_not_know_for_a_tool_call(serve: Serve) -> None:
    """The input of another one may look like that of a call, whose tool would then run unapproved."""
    till = Till()
    alike = {"function_call_id": "fc-1", "root": "payer", "at": 0, "new": []}
    async with serve(payer(till.pay)) as env:
        queue = f"{env.client.task_queue}-newer"
        newer = Worker(env.temporal, task_queue=queue, workflows=[Newer], workflow_runner=UnsandboxedWorkflowRunner())
        async with newer:
            with pytest.raises(WorkflowFailureError) as failed:
                await env.temporal.execute_workflow(
                    Newer.run, args=[env.client.task_queue, alike], id=queue, task_queue=queue
                )
        assert failed.value.cause is not None
        assert "'look_into_it'" in str(failed.value.cause.__cause__)
        assert till.paid == []

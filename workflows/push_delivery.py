"""The workflow that has the states of one A2A task delivered to one URL. It is the push configuration.

It is a workflow of its own, so that neither a slow program nor a lost configuration concerns the invocation.
"""

from temporalio import workflow
from temporalio.common import RawValue

from waystation.core.projection import PUSH
from waystation.core.push import ENDS, PUSH_WORKFLOW, PushTask
from waystation.workflows.engine_activity import execute_engine_activity
from waystation.workflows.ports import input_data, raw

KEPT_AFTER_END_S = 86_400.0
"""How long the configuration of a task that has ended can be read."""
STATES_PER_RUN = 200


@workflow.defn(name=PUSH_WORKFLOW, sandboxed=False, failure_exception_types=[ValueError, TypeError])
class AgentPushDelivery:
    """The delivery of a task's states. It fails if the URL accepts no state for days."""

    @workflow.run
    async def run(self, params: RawValue) -> None:
        """Deliver each state until the task has ended, then wait a day."""
        task = PushTask.model_validate_json(input_data(params))
        for _ in range(STATES_PER_RUN):
            if task.sent in ENDS.values():
                await workflow.sleep(KEPT_AFTER_END_S)
                return
            report = PUSH.parse(await execute_engine_activity(PUSH, task, summary=None))
            task = task.model_copy(update={"sent": report.sent})
        workflow.continue_as_new(raw(task.encode()))

"""The workflow that keeps the push configurations of one A2A task, and has each new state of the task delivered.

It is a workflow of its own, so that neither a slow program nor a lost configuration concerns the invocation.
"""

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from waystation.core.payload import JsonObject, encode
from waystation.core.projection import PUSH
from waystation.core.push import (
    DELETE_PUSH,
    LIST_PUSH,
    MAX_CONFIGS,
    PUSH_WORKFLOW,
    PUT_PUSH,
    PushConfig,
    PushDeletion,
    PushReport,
    PushTask,
)
from waystation.workflows.engine_activity import execute_engine_activity
from waystation.workflows.ports import NO_ARGUMENT, input_data, raw, result_of

LONGEST_PAUSE_S, LONGEST_RETRY_S = 30.0, 3_600.0
ATTEMPTS_AFTER_END = 80
"""How often an end is delivered again, which takes about three days."""
KEPT_AFTER_END_S = 86_400.0
"""How long the configurations of a task that has ended can be read."""
LOOKS_PER_RUN = 200


@workflow.defn(name=PUSH_WORKFLOW, sandboxed=False, failure_exception_types=[ValueError, TypeError])
class AgentPushDelivery:
    """The push configurations of one task."""

    @workflow.init
    def __init__(self, params: RawValue) -> None:
        self._task = PushTask.model_validate_json(input_data(params))
        self._changed = False

    @workflow.run
    async def run(self, params: RawValue) -> None:
        """Deliver states until the task has ended and all configurations have received that, then wait a day."""
        pause_s, attempts = 0.5, 0
        for _ in range(LOOKS_PER_RUN):
            before, self._changed = self._task.sent, False
            report = await self._look()
            known = {config.id for config in self._task.configs} - set(report.gone)
            kept = tuple(config for config in self._task.configs if config.id in known)
            sent = {**self._task.sent, **report.sent}
            sent = {id: state for id, state in sent.items() if id in known}
            self._task = self._task.model_copy(update={"configs": kept, "sent": sent})
            attempts = attempts + 1 if report.ended else 0
            if self._changed:
                continue
            if report.ended and (not report.failed or attempts >= ATTEMPTS_AFTER_END):
                if not await self._wait(KEPT_AFTER_END_S):
                    return
                continue
            longest_s = LONGEST_RETRY_S if report.failed else LONGEST_PAUSE_S
            pause_s = min(pause_s * 2, longest_s) if sent == before else 1.0
            await self._wait(pause_s)
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(raw(self._task.encode()))

    async def _look(self) -> PushReport:
        if not self._task.configs:
            return PushReport(ended=True)
        try:
            return PUSH.parse(await execute_engine_activity(PUSH, self._task, summary=None))
        except ActivityError:
            return PushReport(failed=tuple(config.id for config in self._task.configs))

    async def _wait(self, seconds: float) -> bool:
        try:
            await workflow.wait_condition(lambda: self._changed, timeout=seconds)
        except TimeoutError:
            return False
        return True

    @workflow.update(name=PUT_PUSH)
    async def put_config(self, params: RawValue = NO_ARGUMENT) -> JsonObject:
        """Add a configuration, or replace the one with its ID. It then receives the present state of the task.

        Raises:
            ApplicationError: There are too many, or another person has one with this ID.
        """
        config = PushConfig.model_validate_json(result_of(params.payload))
        others = tuple(other for other in self._task.configs if other.id != config.id)
        same = [other for other in self._task.configs if other.id == config.id]
        if len(others) >= MAX_CONFIGS:
            text = f"A task can have {MAX_CONFIGS} push configurations. Delete one first."
            raise ApplicationError(text, type="InvalidInput", non_retryable=True)
        if same and _owner(same[0]) != _owner(config):
            raise ApplicationError("This ID is taken. Use another one.", type="InvalidInput", non_retryable=True)
        sent = {id: state for id, state in self._task.sent.items() if id != config.id}
        self._task = self._task.model_copy(update={"configs": (*others, config), "sent": sent})
        self._changed = True
        return {"id": config.id}

    @workflow.update(name=DELETE_PUSH)
    async def delete_config(self, params: RawValue = NO_ARGUMENT) -> JsonObject:
        """Delete a configuration of a person, if it exists."""
        old = PushDeletion.model_validate_json(result_of(params.payload))
        owner = (old.subject, old.tenant)
        kept = tuple(other for other in self._task.configs if other.id != old.id or _owner(other) != owner)
        self._task = self._task.model_copy(update={"configs": kept})
        self._changed = True
        return {}

    @workflow.query(name=LIST_PUSH)
    def configs(self) -> RawValue:
        """Return the configurations, without their secrets."""
        return raw(encode([config.model_dump(mode="json", exclude={"sealed"}) for config in self._task.configs]))


def _owner(config: PushConfig) -> tuple[str, str | None]:
    return config.person.subject, config.person.tenant

"""Workflows of a user, in a separate module because the sandbox loads it anew."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from waystation import run_agent


@workflow.defn
class InSandbox:
    """Returns whether the workflow runs in the sandbox."""

    @workflow.run
    async def run(self) -> bool:
        return workflow.unsafe.in_sandbox()


@workflow.defn(dynamic=True)
class AnyOther:
    """Runs for every unknown name, and returns the name."""

    @workflow.run
    async def run(self, _: Sequence[RawValue]) -> str:
        return workflow.info().workflow_type


class Decision(BaseModel):
    """The decision of an agent."""

    approved: bool
    cents: int


@workflow.defn
class Settle:
    """Lets an agent decide."""

    @workflow.run
    async def run(self, order: str) -> int:
        decision = await run_agent("judge", order, output_type=Decision, id=f"{workflow.info().workflow_id}/judge")
        return decision.cents if decision.approved else 0


@workflow.defn
class Ask:
    """Gives a task to an agent, and returns its answer."""

    @workflow.run
    async def run(self, agent: str) -> str:
        return (await run_agent(agent, "please", id=f"{workflow.info().workflow_id}/agent", user_id="dana")).text


@workflow.defn
class Onboarding:
    """Waits until someone signs, then returns who did."""

    def __init__(self) -> None:
        self._signed_by = ""

    @workflow.run
    async def run(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["customer"] == "nobody":
            await workflow.sleep(timedelta(days=365))
        await workflow.wait_condition(lambda: self._signed_by != "")
        return {"customer": params["customer"], "signed_by": self._signed_by}

    @workflow.signal
    def sign(self, by: str) -> None:
        self._signed_by = by


@activity.defn
async def refuse() -> None:
    """Fail for good."""
    raise ApplicationError("sold out", type="SoldOut", non_retryable=True)


@workflow.defn
class Order:
    """Fails because its activity fails."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(refuse, start_to_close_timeout=timedelta(seconds=5))


@workflow.defn
class RunsOperation:
    """Runs an agent through Nexus."""

    @workflow.run
    async def run(self, endpoint: str, agent: str) -> str:
        agents: workflow.NexusClient[Any] = workflow.create_nexus_client(service="waystation", endpoint=endpoint)
        result = await agents.execute_operation("run", {"agent": agent, "message": "hi"}, output_type=dict[str, Any])
        return str(result["text"])

"""A workflow of a user, in a module of its own because the sandbox loads that anew."""

from temporalio import workflow


@workflow.defn
class InSandbox:
    """Returns whether it runs in the sandbox."""

    @workflow.run
    async def run(self) -> bool:
        return workflow.unsafe.in_sandbox()

"""The runner for Waystation's workflows."""

from typing import Any, cast

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from waystation.core import SCOPE_WORKFLOW, SESSION_WORKFLOW, WORKFLOW


class ClearingWorkflowRunner(UnsandboxedWorkflowRunner):
    """Runs workflows outside the sandbox, and frees the memory of Waystation's when they are removed from the cache.

    The SDK's workflow instances contain reference cycles. Otherwise, each instance would stay in memory, with the log
    of its invocation, until the garbage collector finds it. A workflow that is removed while it waits for a timer still
    does.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create a workflow instance."""
        instance = super().create_instance(det)
        if det.defn.name not in (WORKFLOW, SESSION_WORKFLOW, SCOPE_WORKFLOW):  # a user's own, which stays as it is
            return instance
        if not hasattr(instance, "__dict__"):  # of another version of the SDK
            return instance
        activate, replaceable = instance.activate, cast(Any, instance)

        def activate_and_clear(activation: WorkflowActivation) -> WorkflowActivationCompletion:
            completion = activate(activation)
            if activation.jobs[0].HasField("remove_from_cache"):  # then it is the only job, and the last activation
                # Freed futures call this for exceptions that nobody has read. The SDK's function ignores them by now.
                replaceable.__dict__ = {"call_exception_handler": lambda _context: None}
            return completion

        replaceable.activate = activate_and_clear
        return instance

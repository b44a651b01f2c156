"""Find the workflows of a session and their runs: the session, its invocations, and the agents that they call."""

from dataclasses import dataclass

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from waystation.core import ids


@dataclass(frozen=True, slots=True, order=True)
class WorkflowRun:
    """One run of a workflow."""

    workflow_id: str
    run_id: str


async def find_session_runs(client: Client, session: str) -> dict[WorkflowRun, bool]:
    """Return all runs of a session's workflows that the server knows, and whether each is running.

    Visibility lists them with a delay. Running workflows are found at once, as children of their parents, and so are
    the latest invocations by their numbers; agents that these called and that are over are not.
    """
    found: dict[WorkflowRun, bool] = {}
    # The quoted names in such an id have no quotation marks. What goes with `_` or `%` in them is passed over below.
    query = f"WorkflowId = '{session}' OR WorkflowId STARTS_WITH '{session}/'"
    async for execution in client.list_workflows(query):
        if is_in_session(execution.id, session):
            going_on = execution.status is WorkflowExecutionStatus.RUNNING
            found[WorkflowRun(execution.id, execution.run_id)] = going_on
    left = [session, *{run.workflow_id for run, going_on in found.items() if going_on}]
    latest = max((invocation_number(run.workflow_id, session) for run in found), default=0)
    while described := await describe_workflow(client, ids.session_invocation(session, latest := latest + 1)):
        found[WorkflowRun(described.id, described.run_id)] = False
        left += [described.id] if described.status is WorkflowExecutionStatus.RUNNING else []
    seen = set[str]()
    while left:
        if (workflow_id := left.pop()) in seen:
            continue
        seen.add(workflow_id)
        if described := await describe_workflow(client, workflow_id):
            going_on = described.status is WorkflowExecutionStatus.RUNNING
            found[WorkflowRun(workflow_id, described.run_id)] = going_on
            children = described.raw_description.pending_children if going_on else ()
            left += [child.workflow_id for child in children if is_in_session(child.workflow_id, session)]
    return found


def is_in_session(workflow_id: str, session: str) -> bool:
    """Whether a workflow is a session, or below it."""
    return workflow_id == session or workflow_id.startswith(f"{session}/")


def invocation_number(workflow_id: str, session: str) -> int:
    """Return which invocation of a session a workflow is, or is below; 0 when it is the session."""
    number = workflow_id.removeprefix(f"{session}/").partition("/")[0]
    return int(number) if number.isdecimal() else 0


def is_not_found(error: RPCError) -> bool:
    """Whether an error means that there is no such workflow; a missing namespace has another message."""
    return error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower()


async def describe_workflow(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Describe the latest run of a workflow; None when there is no such workflow."""
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if not is_not_found(error):
            raise
        return None

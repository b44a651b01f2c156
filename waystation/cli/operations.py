"""The commands `waystation doctor`, `retry` and `give-up`: find and handle invocations that do not continue."""

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

from rich.text import Text
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetSystemInfoRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from waystation.cli.command_context import AsJson, CommandContext, Exit, InvocationId, Problem
from waystation.client import SEARCH_ATTRIBUTE_TYPES, AgentClient, fetch_search_attributes
from waystation.core import StoreFailed
from waystation.presentation import terminal

QUEUE_TYPES = {
    "workflows": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activities": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    ok: bool
    text: str


async def doctor(ctx: CommandContext, json: AsJson = False) -> Exit:
    """Check the server, the namespace, its search attributes, the workers, the store and held invocations.

    The exit code is 1 if a check finds a problem.
    """
    findings: list[Finding] = []
    async for finding in _examine(await ctx.connect()):
        findings.append(finding)
        mark = Text("ok      " if finding.ok else "problem ", style="green" if finding.ok else "bold red")
        ctx.out.result(asdict(finding), Text.assemble(mark, f"{finding.check}: {finding.text}"))
    return Exit.OK if all(finding.ok for finding in findings) else Exit.FAILED


async def retry(ctx: CommandContext, id: InvocationId, json: AsJson = False) -> Exit:
    """Try what is held in an invocation and its called agents again now, instead of waiting for the next attempt."""
    client = await ctx.connect()
    await client.held.holds(id)  # reports an unknown ID
    try:
        tried = await client.held.retry(id)
    except RPCError as error:
        if error.status is not RPCStatusCode.UNIMPLEMENTED:
            raise
        raise Problem(Exit.FAILED, "This server is too old to retry early. The next attempt still follows.") from None
    if not tried:
        raise Problem(Exit.UNKNOWN, f"Nothing in {id!r} is waiting for its next attempt.")
    for work in tried:
        record = {"invocation_id": work.workflow_id, "activity": work.activity}
        ctx.out.result(record, f"Trying {work.activity} of {work.workflow_id} again.")
    return Exit.OK


async def give_up(ctx: CommandContext, id: InvocationId, json: AsJson = False) -> Exit:
    """Fail what is held in an invocation and its called agents. A held tool call fails with an error for the model.

    If a model call is held, the invocation fails.
    """
    client = await ctx.connect()
    given_up = await client.held.give_up(id)
    if not given_up:
        raise Problem(Exit.UNKNOWN, f"Nothing in {id!r} is held.")
    for hold in given_up:
        ctx.out.result(hold, f"Gave up: {terminal.format_hold(hold)}")
    return Exit.OK


async def _examine(client: AgentClient) -> AsyncIterator[Finding]:
    service, namespace = client.temporal.workflow_service, client.temporal.namespace
    info = await service.get_system_info(GetSystemInfoRequest())
    address = client.temporal.service_client.config.target_host
    yield Finding("server", True, f"{address}, version {info.server_version}")
    try:
        await service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except RPCError as error:
        yield Finding("namespace", False, f"{namespace}: {error.message}")
        return
    yield Finding("namespace", True, namespace)
    found = await fetch_search_attributes(client.temporal)
    missing = [name for name, kind in SEARCH_ATTRIBUTE_TYPES.items() if found.get(name) != kind]
    text = f"missing: {', '.join(missing)}. Create them with `waystation setup`." if missing else "registered"
    yield Finding("search attributes", not missing, text)
    for what, kind in QUEUE_TYPES.items():
        request = DescribeTaskQueueRequest(
            namespace=namespace, task_queue=TaskQueue(name=client.task_queue), task_queue_type=kind
        )
        pollers = len((await service.describe_task_queue(request)).pollers)
        yield Finding(f"workers for {what}", pollers > 0, f"{pollers} polling task queue {client.task_queue}")
    files = client.blobs.files
    problem = files.unusable()
    if not problem and files.folder is None:
        try:
            await files.get("doctor")
        except StoreFailed as error:
            problem = error.problem
    yield Finding("store", not problem, f"{files.place}{f': {problem}' if problem else ''}")
    held = [invocation async for invocation in client.held.each(searchable=not missing)]
    for invocation in held:
        for hold in invocation.holds:
            yield Finding("held", False, terminal.format_held(invocation.invocation_id, hold))
    if not held:
        yield Finding("held", True, "no invocation is held")

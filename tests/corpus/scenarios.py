"""One scenario for each behavior that a history must preserve."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskCompletedRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.service import RPCError
from temporalio.worker import Worker

from tests.corpus import approvals, holds, trees
from waystation.agents import Agent, BaseAgent
from waystation.apps import App
from waystation.client.agent_client import Invocation
from waystation.core.budget import Usage
from waystation.core.errors import ModelOverloaded, ModelRefused
from waystation.core.log import is_working
from waystation.models import LlmResponse
from waystation.storage.driver import OFFLOAD_OVER
from waystation.testing import AgentEnvironment, ScriptedHuman, ScriptedModel, calls, says
from waystation.testing.models import Reply
from waystation.tools.agent_tool import AgentTool
from waystation.tools.function_tool import FunctionTool
from waystation.tools.long_running_tool import LongRunningFunctionTool
from waystation.tools.tool_context import ToolContext


def add(a: int, b: int, tool_context: ToolContext) -> dict[str, int]:
    """Add two numbers."""
    tool_context.state["sum"] = a + b
    tool_context.state["temp:last"] = "add"
    return {"sum": a + b}


def note(text: str, tool_context: ToolContext) -> dict[str, str]:
    """Note a text."""
    tool_context.state["notes"] = {text: True}
    return {"noted": text}


def pay(amount: int) -> dict[str, int]:
    """Pay."""
    return {"paid": amount}


def ask(purpose: str, tool_context: ToolContext) -> dict[str, str]:
    """Ask somebody."""
    tool_context.state["asked"] = purpose
    return {"status": "pending", "purpose": purpose}


def ask_silently(purpose: str) -> None:
    """Ask somebody, without an interim response."""


def fail(reason: str) -> None:
    """Fail."""
    raise ValueError(reason)


async def linger(tool_context: ToolContext) -> None:
    """Run until cancelled."""
    await asyncio.Event().wait()


def show(tool_context: ToolContext) -> dict[str, str]:
    """Show something; the model need not comment."""
    tool_context.actions.skip_summarization = True
    return {"shown": "chart"}


def pay_soon(amount: int) -> dict[str, int]:
    """Pay, if somebody agrees at once."""
    return {"paid": amount}


TOOLS: list[Any] = [
    add,
    note,
    FunctionTool(pay, require_confirmation=True),
    FunctionTool(pay_soon, require_confirmation=True, deadline=timedelta(seconds=0.3)),
    LongRunningFunctionTool(ask),
    LongRunningFunctionTool(ask_silently),
    fail,
    linger,
    show,
]


@dataclass(frozen=True)
class Scenario:
    """The model's replies, and the actions of people."""

    replies: tuple[Reply, ...]
    act: Callable[[AgentEnvironment, Invocation], Awaitable[None]]
    child: tuple[Reply, ...] = ()
    root: Callable[[], BaseAgent | App] | None = None
    """Creates the agent. None creates the usual one."""
    start: Any = None
    """The input of the workflow, for example an invalid one. None sends a valid message."""
    offload_over: int = OFFLOAD_OVER
    """The size in bytes from which payloads are kept outside the history."""
    fork: int = 0
    """The number of the event from which the scenario forks. The corpus keeps the histories of both invocations."""
    ends: WorkflowExecutionStatus = WorkflowExecutionStatus.COMPLETED
    """The status of the invocation when its history is kept."""

    def agent(self) -> BaseAgent | App:
        """Return the agent of the scenario."""
        if self.root:
            return self.root()
        helper = Agent(name="helper", description="Helps.", model=ScriptedModel(*self.child), tools=TOOLS)
        return Agent(name="clerk", model=ScriptedModel(*self.replies), tools=[*TOOLS, AgentTool(helper)])


def glance(place: str, tool_context: ToolContext) -> str:
    """Glance at a place."""
    tool_context.state[place] = "seen"
    return f"seen: {place}"


def glance_twice(place: str) -> str:
    """Glance at a place; the first glance fails."""
    if activity.info().is_local:
        raise OSError("too dark")
    return f"seen: {place}"


def quick_agent() -> BaseAgent:
    """Return an agent with calls that run as local activities, an ordinary call, and one that fails."""
    model = ScriptedModel(
        calls(
            ("glance", {"place": "door"}),
            ("add", {"a": 1, "b": 2}),
            ("glance_twice", {"place": "roof"}),
            ("glance", {"place": "window"}),
        ),
        calls(("glance", {"place": "cellar"})),
        says("done"),
    )
    quick = [FunctionTool(glance, effect="read", quick=True)]
    quick += [FunctionTool(glance_twice, effect="read", quick=True, retries=1)]
    return Agent(name="clerk", model=model, tools=[*quick, add])


def using(tokens: int, reply: LlmResponse) -> LlmResponse:
    """Return a reply with this token count."""
    return replace(reply, usage=Usage(total_tokens=tokens))


async def finish(env: AgentEnvironment, invocation: Invocation) -> None:
    """Wait for the end, whether the invocation succeeds or fails."""
    with contextlib.suppress(WorkflowFailureError):
        await invocation.result()


def attended(*answers: Any) -> Callable[[AgentEnvironment, Invocation], Awaitable[None]]:
    """Return an act that answers by update and then waits for the end."""

    async def act(env: AgentEnvironment, invocation: Invocation) -> None:
        await ScriptedHuman(*answers).attend(invocation)
        await finish(env, invocation)

    return act


async def approve_when_idle(env: AgentEnvironment, invocation: Invocation) -> None:
    """Approve the pending call once the invocation is idle."""
    async for log in invocation.follow():
        if log.state.waiting() and not is_working(log.state):
            await invocation.answer("approve", log.state.waiting()[0].id)
            break
    await finish(env, invocation)


async def waiting(invocation: Invocation, count: int = 1) -> list[str]:
    """Wait until `count` calls are pending, and return their IDs."""
    while len(pending_calls := await invocation.pending()) < count:
        await asyncio.sleep(0.02)
    return [call.function_call_id for call in pending_calls]


async def answer_by_signal(env: AgentEnvironment, invocation: Invocation) -> None:
    """Send junk, then an approval, then a duplicate, all by signal."""
    await waiting(invocation)
    await invocation.handle.signal("answer", "nonsense")
    await invocation.handle.signal("answer", {"function_call_id": "fc-9", "action": "approve"})
    await invocation.handle.signal("unheard_of", 1)
    await invocation.answer("approve", "fc-1", signal=True, by="dana")
    await finish(env, invocation)


async def answer_by_large_signals(env: AgentEnvironment, invocation: Invocation) -> None:
    """Send a reference to a large answer that no store contains, then a large answer that the store contains."""
    await waiting(invocation)
    nowhere = b'{"driverName": "waystation", "claimData": {"digest": "' + b"0" * 64 + b'"}}'
    reference = b"temporal.api.sdk.v1.ExternalStorageReference"
    lost = Payload(metadata={"encoding": b"json/protobuf", "messageType": reference}, data=nowhere)
    await invocation.handle.signal("answer", RawValue(lost))
    await invocation.answer("respond", "fc-2", signal=True, response={"report": "r" * 3_000})
    await finish(env, invocation)


async def answer_both_at_once(env: AgentEnvironment, invocation: Invocation) -> None:
    """Answer two calls at once: the second by signal, the first by update."""
    first, second = await waiting(invocation, 2)
    await invocation.answer("reject", second, signal=True, comment="no")
    await invocation.answer("respond", first, response={"go": True})
    await finish(env, invocation)


async def complete_empty_task(env: AgentEnvironment) -> None:
    """Complete a workflow task without commands, and request another one at once."""
    service, namespace = env.temporal.workflow_service, env.temporal.namespace
    queue = TaskQueue(name=env.client.task_queue)
    polled = await service.poll_workflow_task_queue(PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=queue))
    await service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            namespace=namespace, task_token=polled.task_token, force_create_new_workflow_task=True
        )
    )


async def answer_after_an_empty_task(env: AgentEnvironment, invocation: Invocation) -> None:
    """Send a signal and an update to one workflow task, right after an empty task."""
    await waiting(invocation, 2)
    await env.worker.shutdown()
    await invocation.handle.signal("answer", {"function_call_id": "fc-9", "action": "approve"})
    for _ in range(2):  # a replay merges no empty task into one that follows commands, and the first of these does
        await complete_empty_task(env)
    await invocation.answer("claim", "fc-1", by="dana", signal=True)
    update = asyncio.create_task(invocation.answer("respond", "fc-2", response={"go": True}))
    while not (await invocation.handle.describe()).raw_description.HasField("pending_workflow_task"):
        await asyncio.sleep(0.02)
    async with Worker(**env.worker.config()):
        await update
        await invocation.answer("respond", "fc-1", response={"go": False}, by="dana")
        await finish(env, invocation)


async def cancel_when_waiting(env: AgentEnvironment, invocation: Invocation) -> None:
    """Cancel while a call is pending."""
    await waiting(invocation)
    await invocation.cancel()
    await finish(env, invocation)


async def cancel_when_running(env: AgentEnvironment, invocation: Invocation) -> None:
    """Cancel while a tool runs."""
    async for event in invocation.events():
        if event.function_calls():
            break
    await invocation.cancel()
    await finish(env, invocation)


async def answer_the_quick_one(env: AgentEnvironment, invocation: Invocation) -> None:
    """Answer one of two pending calls; the other never gets an answer."""
    await waiting(invocation, 2)
    quick = next(call for call in await invocation.pending() if call.agent == "quick")
    await invocation.approve(quick.function_call_id)
    await finish(env, invocation)


async def approve_one(env: AgentEnvironment, invocation: Invocation) -> None:
    """Approve the first of two equal pending calls."""
    first, _ = await waiting(invocation, 2)
    await invocation.approve(first)
    await finish(env, invocation)


async def leave_waiting(env: AgentEnvironment, invocation: Invocation) -> None:
    """Leave the invocation waiting."""
    await waiting(invocation)


async def answer_the_child(env: AgentEnvironment, invocation: Invocation) -> None:
    """Approve the pending call of a called agent."""
    child = env.client.invocation(f"{invocation.id}/fc-1")
    while True:
        with contextlib.suppress(RPCError):  # the child workflow has not started yet
            await waiting(child)
            break
        await asyncio.sleep(0.02)
    await child.approve()
    await finish(env, invocation)


FAILED, CANCELED = WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.CANCELED
RUNNING = WorkflowExecutionStatus.RUNNING

ASKING = {"agent": "clerk", "message": "hi", "budget": {"max_total_tokens": 100, "on_exhausted": "ask"}}

SCENARIOS = {
    "one-tool": Scenario((calls(("add", {"a": 1, "b": 2})), says("3")), finish),
    "no-tool": Scenario((says("Hello."),), finish),
    "parallel-tools": Scenario(
        (calls(("add", {"a": 1, "b": 2}), ("note", {"text": "x"}), ("note", {"text": "y"})), says("done")), finish
    ),
    "quick-tools": Scenario((), finish, root=quick_agent),
    "many-steps": Scenario((*[calls(("note", {"text": str(n)})) for n in range(8)], says("done")), finish),
    "tool-raises": Scenario((calls(("fail", {"reason": "no"})), says("It failed.")), finish),
    "unknown-tool": Scenario((calls(("vanish", {})), says("Sorry.")), finish),
    "skip-summarization": Scenario((calls(("show", {})),), finish),
    "model-fails": Scenario((ModelRefused("no such model", status=404),), finish, ends=FAILED),
    "long-running-approved": Scenario(
        (calls(("ask", {"purpose": "p"})), says("I asked."), says("Approved.")),
        attended({"action": "approve", "by": "dana", "comment": "fine"}),
    ),
    "long-running-silent-answered-by-signal": Scenario(
        (calls(("ask_silently", {"purpose": "p"})), says("Approved.")), answer_by_signal
    ),
    "long-running-progress": Scenario(
        (calls(("ask", {"purpose": "p"})), says("I asked."), says("Halfway."), says("Done.")),
        attended(
            {"action": "progress", "response": {"done": 0.1}, "wake": False},
            {"action": "progress", "response": {"done": 0.5}},
            {"action": "respond", "response": {"result": 42}},
        ),
    ),
    "two-long-running-in-one-batch": Scenario(
        (calls(("ask_silently", {"purpose": "a"}), ("ask_silently", {"purpose": "b"})), says("Both known.")),
        answer_both_at_once,
    ),
    "two-long-running-after-an-empty-task": Scenario(
        (calls(("ask_silently", {"purpose": "a"}), ("ask_silently", {"purpose": "b"})), says("Both known.")),
        answer_after_an_empty_task,
    ),
    "confirmation-approved": Scenario(
        (calls(("pay", {"amount": 5}), ("note", {"text": "x"})), says("Paid.")), attended("approve")
    ),
    "confirmation-rejected": Scenario(
        (calls(("pay", {"amount": 5})), says("Not paid.")), attended({"action": "reject", "comment": "too much"})
    ),
    "confirmation-edited": Scenario(
        (calls(("pay", {"amount": 500})), says("Paid less.")), attended({"action": "edit", "args": {"amount": 5}})
    ),
    "confirmation-left-waiting": Scenario((calls(("pay", {"amount": 5})),), leave_waiting, ends=RUNNING),
    "confirmation-expired": Scenario((calls(("pay_soon", {"amount": 5})), says("Nobody agreed.")), finish),
    "cancelled-while-waiting": Scenario((calls(("pay", {"amount": 5})),), cancel_when_waiting, ends=CANCELED),
    "cancelled-while-a-tool-runs": Scenario(
        (calls(("linger", {}), ("add", {"a": 1, "b": 1})),), cancel_when_running, ends=CANCELED
    ),
    "called-agent": Scenario(
        (calls(("helper", {"request": "add"})), says("The helper says 3.")),
        finish,
        child=(calls(("add", {"a": 1, "b": 2})), says("3")),
    ),
    "called-agent-waits": Scenario(
        (calls(("helper", {"request": "pay"})), says("The helper paid.")),
        answer_the_child,
        child=(calls(("pay", {"amount": 5})), says("paid")),
    ),
    "called-agent-fails": Scenario(
        (calls(("helper", {"request": "x"})), says("The helper failed.")),
        finish,
        child=(ModelRefused("quota", status=403),),
    ),
    "unknown-agent": Scenario((), finish, start={"agent": "nobody", "message": "hi"}, ends=FAILED),
    "invalid-input": Scenario((), finish, start={"agent": "clerk"}, ends=FAILED),
    "model-call-limit": Scenario(
        (calls(("add", {"a": 1, "b": 2})), says("never said")),
        finish,
        start={"agent": "clerk", "message": "hi", "budget": {"max_llm_calls": 1}},
    ),
    "sequence-waits": Scenario((), attended("approve"), root=trees.sequence),
    "sequence-left-waiting": Scenario((), leave_waiting, root=trees.sequence, ends=RUNNING),
    "sequence-cancelled": Scenario((), cancel_when_waiting, root=trees.sequence, ends=CANCELED),
    "custom-waits": Scenario((), attended("approve"), root=trees.custom),
    "loop-escalates": Scenario((), finish, root=trees.loop),
    "branches-one-waits": Scenario((), attended("approve"), root=trees.branches),
    "branches-cancelled": Scenario((), cancel_when_waiting, root=trees.branches, ends=CANCELED),
    "race-escalates": Scenario((), answer_the_quick_one, root=trees.race),
    "transfer": Scenario((), finish, root=trees.transfer),
    "transfer-by-tool": Scenario((), finish, root=trees.transfer_by_tool),
    "callbacks": Scenario((), finish, root=trees.callbacks),
    "structured": Scenario((), finish, root=trees.structured),
    "asks-for-confirmation": Scenario((), attended("approve"), root=trees.asks_for_confirmation),
    "asks-for-confirmation-rejected": Scenario((), attended("reject"), root=trees.asks_for_confirmation),
    "budget-wraps-up": Scenario(
        (using(100, calls(("add", {"a": 1, "b": 2}))), says("3, as far as I came.")),
        finish,
        start={"agent": "clerk", "message": "hi", "budget": {"max_total_tokens": 100}},
    ),
    "budget-has-no-room-for-a-call": Scenario(
        (calls(("note", {"text": "x"}), ("note", {"text": "y"})), says("Only x.")),
        finish,
        start={"agent": "clerk", "message": "hi", "budget": {"max_tool_calls": 1}},
    ),
    "budget-asks-approved": Scenario(
        (using(100, calls(("add", {"a": 1, "b": 2}))), using(1, says("3"))), attended("approve"), start=ASKING
    ),
    "budget-asks-rejected": Scenario(
        (using(100, calls(("add", {"a": 1, "b": 2}))), says("3, as far as I came.")), attended("reject"), start=ASKING
    ),
    "budget-asks-for-time": Scenario(
        (calls(("add", {"a": 1, "b": 2})), says("3")),
        attended({"action": "approve", "response": {"max_wall_s": 3600}}),
        start={"agent": "clerk", "message": "hi", "budget": {"max_wall_s": 0.001, "on_exhausted": "ask"}},
    ),
    "budget-left-waiting": Scenario(
        (using(100, calls(("add", {"a": 1, "b": 2}))),), leave_waiting, start=ASKING, ends=RUNNING
    ),
    "budget-shared": Scenario(
        (using(60, calls(("helper", {"request": "add"}))), using(1, says("The helper says 3."))),
        finish,
        child=(using(40, calls(("add", {"a": 1, "b": 2}))), says("3, as far as I came.")),
        start={"agent": "clerk", "message": "hi", "budget": {"max_total_tokens": 100}},
    ),
    "needs-login": Scenario((), approve_one, root=trees.needs_login),
    # The order matters: the second scenario reads what the first one has stored.
    "scopes-stored": Scenario((), attended("approve"), root=trees.scopes, start=trees.of_ada({"user:name": "Ada"})),
    "scopes-read": Scenario((), cancel_when_waiting, root=trees.scopes, start=trees.of_ada({}), ends=CANCELED),
    "compacted": Scenario((), approve_when_idle, root=trees.compacted),
    "compaction-fails": Scenario((), finish, root=trees.compaction_fails),
    "offloaded": Scenario(
        (calls(("note", {"text": "n" * 3_000}), ("ask_silently", {"purpose": "p"})), says("Approved.")),
        answer_by_large_signals,
        start={"agent": "clerk", "message": "hi " * 1_000, "state": {"seed": 1}},
        offload_over=2_000,
    ),
    # The corpus keeps the history of the last run.
    "continued": Scenario(
        (*[calls(("note", {"text": f"{number}"})) for number in range(5)], says("all noted")),
        finish,
        start={"agent": "clerk", "message": "hi", "state": {"seed": 1}, "cut_after": 20},
    ),
    "forked": Scenario((calls(("add", {"a": 1, "b": 2})), *[says("3")] * 2), finish, fork=3),
    "approvals-of-two": Scenario(
        (),
        approvals.answers(
            {"action": "view", "by": "ann"},
            {"action": "claim", "by": "ann"},
            {"action": "approve", "by": "bob"},
            {"action": "release", "by": "ann"},
            {"action": "approve", "by": "bob", "comment": "fine"},
            {"action": "edit", "by": "ann", "args": {"amount": "many"}},
            {"action": "edit", "by": "ann", "args": {"amount": 4}},
            {"action": "approve", "by": "bob"},
        ),
        root=approvals.by_two,
    ),
    "approval-in-part": Scenario((), approvals.approve_in_part, root=approvals.by_two, ends=RUNNING),
    "approval-remembered": Scenario(
        (), approvals.answers({"action": "approve", "by": "ann", "remember": True}), root=approvals.remembered
    ),
    "approval-escalated": Scenario(
        (), approvals.answers({"action": "approve", "by": "boss", "level": 1}), root=approvals.escalated
    ),
    "approval-expired": Scenario((), approvals.answers(), root=approvals.failing, ends=FAILED),
    "approval-waived": Scenario((), approvals.answers({"action": "waive", "by": "op"}), root=approvals.by_two),
    "approval-cancelled": Scenario(
        (), approvals.answers({"action": "cancel", "by": "op", "comment": "late"}), root=approvals.by_two
    ),
    "model-held": Scenario((*[ModelOverloaded("Busy.")] * 5, says("Hello.")), finish),
    "tool-held": Scenario((), holds.approved_while_away(gives_up=False), root=holds.payer),
    "tool-given-up": Scenario((), holds.approved_while_away(gives_up=True), root=holds.payer),
    "response-of-a-schema": Scenario(
        (),
        approvals.answers(
            {"action": "respond", "response": {"granted": "perhaps"}},
            {"action": "respond", "response": {"granted": True}},
        ),
        root=approvals.ordering,
    ),
}

"""Run a recorded step again: a tool call, or a model call, with what it was given then and the code of now.

Nothing is written to a server or a history. What the tool does is real.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from temporalio.exceptions import ApplicationError

from waystation.activities.model_choice import DEMO, Models
from waystation.core import ids, summary
from waystation.core.call import CallState
from waystation.core.errors import WaystationError
from waystation.core.model_call import Confirmation
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.replay import request_file
from waystation.replay.asking import registry_of
from waystation.replay.bench import Bench, failure_of
from waystation.replay.prompt import Agents
from waystation.replay.recording import Recording
from waystation.replay.request_file import to_json
from waystation.replay.rerun_result import ModelRerun, ToolRerun, differing
from waystation.replay.steps import ModelStep, NoSuchStep, ToolStep, calls_in, model_number, model_step, tool_step
from waystation.worker.services import lasting_services

if TYPE_CHECKING:
    from waystation.activities.session_history import Conversations
    from waystation.tools.services import Services

_EARLIER = "What was said before in its session was not read, so a model sees only this invocation."


class NotApproved(WaystationError):
    """A call would run that nobody has approved."""

    def __init__(self, planned: "PlannedCall") -> None:
        super().__init__(
            f"{planned.what} was never approved: {planned.unapproved}. To run it on this machine all the same, say so: "
            "`unapproved=True`, or --unapproved."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A recorded tool call that may be run again."""

    step: ToolStep
    what: str
    """The call in one short line."""
    effect: str
    """`read`, `repeatable` or `once`, as the tool says now: it is that which would run."""
    args: JsonObject
    idempotency_key: str
    unapproved: str | None
    """Why nobody's approval lets it run, although it needs one; None when it does not, or has it."""

    @property
    def call(self) -> CallState:
        """The call as it was just before."""
        return self.step.log.calls[self.step.function_call_id]


class Workshop:
    """Runs steps of recordings again with the agents at hand. Close it, or use it in `async with`."""

    def __init__(
        self,
        agents: Agents,
        *,
        models: Models | None = None,
        services: "Services | None" = None,
        conversations: "Conversations | None" = None,
        on_heartbeat: Callable[..., None] = lambda *_: None,
    ) -> None:
        """Take what a worker would.

        Args:
            agents: Where the agents are found.
            models: How model names become models.
            services: Where artifacts, memories and credentials are; by default as for a worker in this folder.
            conversations: What reads earlier invocations of a session; without it they are left out.
            on_heartbeat: Is told what a tool says while it runs.

        Raises:
            AuthoringError: An agent cannot be used; the first mistake.
        """
        self._models = models or Models()
        self._bench = Bench(
            registry_of(agents),
            models=self._models,
            services=services or lasting_services(),
            conversations=conversations,
            on_heartbeat=on_heartbeat,
        )
        self._knows_sessions = conversations is not None

    async def __aenter__(self) -> "Workshop":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._bench.close()

    async def planned(
        self, recording: Recording, event: int, *, call: str | None = None, args: JsonObject | None = None
    ) -> PlannedCall:
        """Return the tool call of an event, as it would be run again.

        Args:
            recording: Where the event is.
            event: The event with the call, or with its response.
            call: The call's id, when the event has several.
            args: Instead of the recorded arguments.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: It has no such call, or several.
            UnknownAgent: The agent is not there.
        """
        step = tool_step(recording, _chosen(recording, event, call))
        held = step.log.calls[step.function_call_id]
        tool = await self._bench.tool(step)
        confirmed = held.call.confirmation is not None
        used = held.args if args is None else args
        return PlannedCall(
            step=step,
            what=summary.call(held.name, used),
            effect=tool.effect_when(confirmed=confirmed) if tool else step.given.effect,
            args=used,
            idempotency_key=ids.idempotency_key(step.log.invocation_id, held.id),
            unapproved=_unapproved(recording, step),
        )

    async def rerun_tool(self, recording: Recording, planned: PlannedCall, *, unapproved: bool = False) -> ToolRerun:
        """Run a tool call again.

        Raises:
            NotApproved: Nobody has approved it, and `unapproved` does not say that it may run all the same.
        """
        step, call = planned.step, planned.call
        if planned.unapproved and not unapproved:
            raise NotApproved(planned)
        remarks = [f"The tool was given the recorded idempotency key, {planned.idempotency_key}."]
        if planned.unapproved:
            asks = call.asks or call.call.confirmation or Confirmation()
            confirmation = {"confirmed": True, "hint": asks.hint, "payload": asks.payload}
            step = replace(step, given=step.given.model_copy(update={"confirmation": confirmation}))
            remarks.append(f"Nobody has approved this call: {planned.unapproved}.")
        elif step.scheduled is None:
            remarks.append("It never ran before; its context is that of the last recorded moment.")
        remarks += self._lacking(recording)
        now, failure = None, None
        try:
            now = await self._bench.call_tool(step, args=None if planned.args == call.args else planned.args)
        except ApplicationError as error:
            failure = failure_of(error)
        return ToolRerun(
            source=recording.source,
            what=f"{planned.what}, call {call.id} of {recording.id}",
            agent=call.agent,
            tool=call.name,
            function_call_id=call.id,
            args=planned.args,
            idempotency_key=planned.idempotency_key,
            recorded=step.outcome,
            recorded_failure=step.failure,
            now=now,
            failure=failure,
            remarks=remarks,
        )

    async def prompt(self, recording: Recording, event: int) -> JsonObject:
        """Return what the model call that gave an event would be given now, in the form in which it can be edited.

        Callbacks up to that point run; the model is not asked.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: No model gave it.
            NotAsked: A callback speaks for the model.
        """
        return to_json((await self._bench.prompt(self._asked(recording, event))).sent)

    async def rerun_model(
        self,
        recording: Recording,
        event: int,
        *,
        prompt: str | bytes | None = None,
        instruction: str | None = None,
        model: str | BaseLlm | None = None,
    ) -> ModelRerun:
        """Make the model call again that gave an event, with the prompt as it was, or an edited one.

        Args:
            recording: Where the event is.
            event: That with the reply, or with the error.
            prompt: JSON as `prompt` returns it; what it leaves out stays as it is.
            instruction: Instead of the system instruction.
            model: A model, or the name of one, that is asked instead.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: No model gave it.
            NotAPrompt: The prompt is none.
            UnknownAgent: The agent is not there.
        """
        step = self._asked(recording, event)
        edited = {} if prompt is None else request_file.read(prompt)
        if instruction is not None:
            edited["system_instruction"] = instruction
        if isinstance(model, str):
            edited["model"] = model
        edits: list[JsonObject] = []
        sent: list[LlmRequest] = []

        async def ask(known: BaseLlm, request: LlmRequest, on_text: Callable[[str], None] | None) -> LlmResponse:
            edits.append(to_json(request))
            sent.append(replace(request, **edited))
            asked = known
            if isinstance(model, BaseLlm):
                asked = model
            elif edited.get("model", request.model) != request.model:
                asked = self._models.named(edited["model"], step.given.agent)
            return await asked.generate(sent[-1], on_text=on_text)

        reply, asked, failure = None, None, None
        try:
            reply, asked = await self._bench.call_model(step, asks=ask)
        except ApplicationError as error:
            failure = failure_of(error)
        changed, remarks = _changed(step, asked.definition if asked else None)
        given = to_json(sent[-1]) if sent else None
        if given is None and failure is None:
            remarks.append("A callback spoke for the model, which was not asked.")
        return ModelRerun(
            source=recording.source,
            what=f"model call {step.number} of {step.given.agent}, of {recording.id}",
            agent=step.given.agent,
            number=step.number,
            request=given,
            edited=differing(edits[-1], given) if given else (),
            changed=changed,
            recorded=step.reply,
            recorded_failure=step.failure,
            now=reply,
            failure=failure,
            remarks=[*remarks, *self._lacking(recording)],
        )

    def _asked(self, recording: Recording, event: int) -> ModelStep:
        number = model_number(recording, event)
        if number is None:
            raise NoSuchStep(f"No model gave event {event} of {recording.source!r}; `waystation events` lists them.")
        step = model_step(recording, number)
        self._bench.registry.find(step.given.root, step.given.agent)
        return step

    def _lacking(self, recording: Recording) -> list[str]:
        """Say what of the context could not be had."""
        started = recording.log.input
        belongs = started is not None and started.session is not None
        return [_EARLIER] if belongs and not self._knows_sessions else []


async def rerun_tool(
    recording: Recording,
    event: int,
    *,
    agents: Agents,
    call: str | None = None,
    args: JsonObject | None = None,
    unapproved: bool = False,
    services: "Services | None" = None,
) -> ToolRerun:
    """Run the tool call of an event again, on this machine and at once; its effect is real.

    It is given the recorded arguments (edited ones, where a person edited them), the state and everything else of its
    context as they were, and the same idempotency key.

    Args:
        recording: Where the event is.
        event: The event with the call, or with its response.
        agents: Where the agent is found.
        call: The call's id, when the event has several.
        args: Instead of the recorded arguments.
        unapproved: Whether it may run although nobody has approved it, which it needed.
        services: Where artifacts, memories and credentials are; by default as for a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchStep: It has no such call, or several.
        NotApproved: Nobody has approved it.
        UnknownAgent: The agent is not there.
    """
    async with Workshop(agents, services=services) as workshop:
        planned = await workshop.planned(recording, event, call=call, args=args)
        return await workshop.rerun_tool(recording, planned, unapproved=unapproved)


async def rerun_model(
    recording: Recording,
    event: int,
    *,
    agents: Agents,
    prompt: JsonObject | None = None,
    instruction: str | None = None,
    model: str | BaseLlm | None = None,
    services: "Services | None" = None,
) -> ModelRerun:
    """Make the model call again that gave an event, with the prompt as it was, or an edited one.

    Args:
        recording: Where the event is.
        event: That with the reply, or with the error.
        agents: Where the agent is found.
        prompt: What is to be otherwise in it, such as `{"contents": […]}`; `ModelRerun.request` shows the names.
        instruction: Instead of the system instruction.
        model: A model, or the name of one, that is asked instead; `demo` is the agent's offline stand-in.
        services: Where artifacts, memories and credentials are; by default as for a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchStep: No model gave it.
        UnknownAgent: The agent is not there.
    """
    from waystation.core.payload import encode

    given = None if prompt is None else encode(prompt)
    models, model = (Models(DEMO), None) if model == DEMO else (None, model)
    async with Workshop(agents, models=models, services=services) as workshop:
        return await workshop.rerun_model(recording, event, prompt=given, instruction=instruction, model=model)


def _chosen(recording: Recording, event: int, call: str | None) -> str:
    """Return which call of an event is meant."""
    found = calls_in(recording, event)
    if call is not None:
        if call not in found:
            has = ", ".join(found) or "none"
            raise NoSuchStep(f"Event {event} of {recording.source!r} has no call {call!r}; it has: {has}.")
        return call
    if len(found) > 1:
        raise NoSuchStep(
            f"Event {event} of {recording.source!r} has several calls: {', '.join(found)}. Choose: --call."
        )
    if not found:
        raise NoSuchStep(f"Event {event} of {recording.source!r} has no tool call; `waystation events` lists them.")
    return found[0]


def _unapproved(recording: Recording, step: ToolStep) -> str | None:
    """Return why a call that never ran has no approval; None when it has one, or needs none."""
    call = recording.log.calls[step.function_call_id]
    if step.scheduled is not None or call.gate in ("none", "passed"):
        return None
    if call.answer and call.answer.action == "reject":
        return f"{call.answered_by or 'somebody'} rejected it"
    if call.expired:
        return "nobody answered in time"
    return "it still waits for a person" if call.gate == "waiting" and not recording.log.ended else "nobody answered"


def _changed(step: ModelStep, definition: str | None) -> tuple[bool | None, list[str]]:
    """Return whether the agent has changed since, and what to say of it."""
    if definition is None or step.reply is None or not step.reply.definition:
        return None, []
    if definition == step.reply.definition:
        return False, ["The agent is as it was: same model, instruction, tools and settings."]
    return True, ["The agent has changed since: the prompt has its present instruction, tools and settings."]

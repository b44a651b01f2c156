"""Run the code of recorded activities again on this machine: a tool call, a model call, or the making of a prompt.

It is the workers' code in an `ActivityEnvironment`, and reads a recording where workers read histories. Nothing is
written to a server or a history; what the code of agents, tools and callbacks does by itself is real.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from waystation.activities import (
    DEMO,
    Contexts,
    Conversations,
    Hooks,
    ModelCaller,
    Models,
    ToolCaller,
    close_plugins,
    definition_digest,
    request_of,
    speakers,
    tools_for,
)
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry, discover
from waystation.core import (
    MODEL,
    Body,
    CallLost,
    CallRef,
    CallReturned,
    CallState,
    Compaction,
    Confirmation,
    Conversation,
    Ended,
    EntryRef,
    Failure,
    InvocationInput,
    JsonObject,
    Log,
    ModelCallInput,
    ModelLost,
    ModelReplied,
    ModelReply,
    ModelReplyRef,
    NoPrompt,
    Position,
    ToolCallInput,
    ToolOutcome,
    WaystationError,
    a,
    encode,
    ids,
    summary,
)
from waystation.history import attempts_of, read_content
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.replay.comparison import ModelRerun, ToolRerun, json_differences
from waystation.replay.prompt import Agents, Prompt, PromptContext
from waystation.replay.recording import Recording
from waystation.tools.base_tool import BaseTool
from waystation.tools.services import Services
from waystation.tools.toolbox import close_toolsets
from waystation.worker.services import lasting_services

OnText: TypeAlias = Callable[[str], None] | None
Ask: TypeAlias = Callable[[Callable[[], BaseLlm], LlmRequest, OnText], Awaitable[LlmResponse]]
"""Asks a model. The model is looked up only when it is asked, so that a prompt can be seen without a key."""


class _EditablePrompt(BaseModel):
    """The JSON of a prompt in a file for editing. What a file leaves out stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = ""
    system_instruction: str | None = Field(default=None, alias="systemInstruction")
    contents: list[JsonObject] = Field(default=[], min_length=1)
    tools: list[JsonObject] = []
    native_tools: list[JsonObject] = Field(default=[], alias="nativeTools")
    config: JsonObject = {}


class NoSuchStep(WaystationError):
    """An event was not made by such a step, or what the step was given is not recorded."""


class NotApproved(WaystationError):
    """A call that nobody has approved would run."""

    def __init__(self, planned: "PlannedCall") -> None:
        super().__init__(
            f"{planned.what} was never approved: {planned.unapproved}. To run it on this machine all the same, say so: "
            "`unapproved=True`, or --unapproved."
        )


class NotAsked(WaystationError):
    """Author code answered for the agent or its model, so that no model is asked."""


class NotAPrompt(WaystationError):
    """A file does not hold what a model can be given."""


class _StopBeforeModel(BaseException):
    """The request is known, and the model is not to be asked. No author code catches it."""


InputT = TypeVar("InputT", bound=Position)
ResultT = TypeVar("ResultT")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RecordedActivity(Generic[InputT, ResultT]):
    """A model call, or one run of a tool call."""

    log: Log
    """The log just before the activity was scheduled; for a tool call that never ran, the last recorded log."""
    scheduled: Mapping[str, Any] | None
    """The recorded fields of `activity.Info`. None for a tool call that never ran."""
    input: InputT
    result: ResultT | None
    failure: Failure | None
    """Why the activity has no result. None for a tool call that never ran."""


ModelStep: TypeAlias = RecordedActivity[ModelCallInput, ModelReply]
ToolStep: TypeAlias = RecordedActivity[ToolCallInput, ToolOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """The request of a model call that was made again."""

    sent: LlmRequest
    definition: str
    """Digest of what the agent declares; equal to that of a recorded reply when the agent has not changed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A recorded tool call that may be run again."""

    step: ToolStep
    what: str
    """The call in one short line."""
    effect: str
    """`read`, `repeatable` or `once`, as the present tool declares it."""
    args: JsonObject
    idempotency_key: str
    unapproved: str | None
    """Why no approval lets it run, although it needs one; None when it does not, or has one."""

    @property
    def call(self) -> CallState:
        """The call as it was just before."""
        return self.step.log.state.calls[self.step.input.function_call_id]


def model_step(recording: Recording, number: int) -> ModelStep:
    """Return model call `number`.

    Raises:
        NoSuchStep: The recording has no such call, or the history of its run is lost.
    """
    unreadable = f"The input of model call {number} of {recording.source!r} cannot be read."
    if step := _find_activity(recording, ModelReplyRef(number), ModelCallInput, unreadable):
        return step
    raise NoSuchStep(f"The histories of {recording.source!r} hold no model call {number}.")


def tool_step(recording: Recording, function_call_id: str) -> ToolStep:
    """Return the last run of a tool call.

    Raises:
        NoSuchStep: The recording has no such call.
    """
    call = recording.log.state.calls.get(function_call_id)
    if call is None:
        known = ", ".join(recording.log.state.calls) or "none"
        raise NoSuchStep(f"{recording.source!r} has no call {function_call_id!r}; its calls: {known}.")
    unreadable = f"{function_call_id!r} of {recording.source!r} calls no tool but an agent."
    for run in range(call.run, -1, -1):
        if step := _find_activity(recording, CallRef(function_call_id, run), ToolCallInput, unreadable):
            return step
    return _never_ran(recording, function_call_id)


def _find_activity(
    recording: Recording, ref: ModelReplyRef | CallRef, input_type: type[InputT], unreadable: str
) -> RecordedActivity[InputT, Any] | None:
    """Return a recorded activity; None if it was never scheduled."""
    scheduled = _scheduled(recording, str(ref))
    if scheduled is None:
        return None
    data, info = scheduled
    try:
        params = input_type.model_validate_json(data)
    except ValidationError:
        raise NoSuchStep(unreadable) from None
    entries = params.at + len(params.new) - recording.log.entries_before
    if entries < 0:
        raise NoSuchStep(f"The log before {str(ref)!r} of {recording.source!r} is lost with an earlier run.")
    result, failure = _outcome(recording.log, ref)
    return RecordedActivity(log=recording.after(entries), scheduled=info, input=params, result=result, failure=failure)


def _outcome(log: Log, ref: ModelReplyRef | CallRef) -> tuple[Any, Failure | None]:
    """Return the result of an activity, and why it has none."""
    for entry in log.entries:
        match entry.body:
            case ModelReplied(number, result) if ModelReplyRef(number) == ref:
                return result, None
            case CallReturned(result, run) if CallRef(result.function_call_id, run) == ref:
                return result, None
            case ModelLost(number, failure) if ModelReplyRef(number) == ref:
                return None, failure
            case CallLost(id, failure, run) if CallRef(id, run) == ref:
                return None, failure
    return None, None


def _never_ran(recording: Recording, function_call_id: str) -> ToolStep:
    """Return a call of which no run is recorded, as it would have run at the last moment of the recording."""
    log = recording.after(len(recording.log.entries))
    call = log.state.calls[function_call_id]
    if call.call.kind in ("agent", "answered"):
        what = "calls an agent" if call.call.kind == "agent" else "was answered when the model's reply was read"
        raise NoSuchStep(f"{function_call_id!r} of {recording.source!r} {what}; there is no tool to run.")
    plan = call.call
    params = ToolCallInput(
        at=log.length,
        new=(),
        function_call_id=call.id,
        confirmation=call.tool_confirmation(),
        root=log.state.root,
        run=call.run,
        effect=plan.effect,
        timeout_s=plan.timeout_s,
        retries=plan.retries,
        digest=call.approved_digest,
    )
    return ToolStep(log=log, scheduled=None, input=params, result=call.outcome, failure=None)


def model_number(recording: Recording, event: int) -> int | None:
    """Return the number of the model call that gave an event; None when another step did.

    Raises:
        NoSuchEvent: There is no such event.
    """
    body = recording.log.entries[recording.moment(event).entries - 1].body
    if isinstance(body, Ended):  # because the model gave no answer: that makes no event of its own
        lost = [entry.body.number for entry in recording.log.entries if isinstance(entry.body, ModelLost)]
        return lost[-1] if lost else None
    return body.number if isinstance(body, ModelReplied) else None


def calls_in(recording: Recording, event: int) -> list[str]:
    """Return the ids of the tool calls that an event makes, asks for, or brings responses to, in its order."""
    found = recording.moment(event).event
    parts = ((found and found.content) or {}).get("parts") or ()
    named = dict.fromkeys(
        ids.requesting_call(str(held.get("id")))
        for part in parts
        for held in (part.get("functionCall"), part.get("functionResponse"))
        if held
    )
    return [id for id in named if id in recording.log.state.calls]


def _scheduled(recording: Recording, activity_id: str) -> tuple[bytes, Mapping[str, Any]] | None:
    """Return input and info of the activity scheduled last under an id; after a reset there can be two."""
    for history in reversed(recording.histories):
        for attempts in reversed(attempts_of([history])):
            scheduled = history.events[attempts.event_id - 1].activity_task_scheduled_event_attributes
            if scheduled.activity_id == activity_id:
                started = history.events[0].workflow_execution_started_event_attributes
                return read_content(scheduled.input.payloads), {
                    "workflow_run_id": started.original_execution_run_id,
                    "task_queue": scheduled.task_queue.name,
                    "heartbeat_timeout": scheduled.heartbeat_timeout.ToTimedelta() or None,
                    "attempt": attempts.count or 1,
                }
    return None


class Workshop:
    """Runs steps of recordings again with the present agents. Close it, or use it in `async with`."""

    def __init__(
        self,
        agents: Agents,
        *,
        models: Models | None = None,
        services: Services | None = None,
        conversations: Conversations | None = None,
        on_heartbeat: Callable[..., None] = lambda *_: None,
    ) -> None:
        """Take what a worker would.

        Args:
            agents: Where the agents are found.
            models: How model names become models.
            services: Where artifacts, memories and credentials are; by default as for a worker in this folder.
            conversations: Reads earlier invocations of a session; without it they are left out.
            on_heartbeat: Called with the details of heartbeats while an activity runs.

        Raises:
            AuthoringError: An agent cannot be used; the first mistake.
        """
        self.registry = registry_of(agents)
        self._models, self._services = models or Models(), services or lasting_services()
        self._conversations, self._on_heartbeat = conversations, on_heartbeat

    async def __aenter__(self) -> "Workshop":
        return self

    async def __aexit__(self, *_: object) -> None:
        roots = self.registry.roots.values()
        await close_toolsets([root.agent for root in roots])
        await close_plugins([plugin for root in roots for plugin in root.plugins])
        await self._models.close()

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
        held = step.log.state.calls[step.input.function_call_id]
        tool = await self._tool(step)
        confirmed = held.call.confirmation is not None
        used = held.args if args is None else args
        return PlannedCall(
            step=step,
            what=summary.call(held.name, used),
            effect=tool.effect_when(confirmed=confirmed) if tool else step.input.effect,
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
            step = replace(step, input=step.input.model_copy(update={"confirmation": confirmation}))
            remarks.append(f"Nobody has approved this call: {planned.unapproved}.")
        elif step.scheduled is None:
            remarks.append("It never ran before; its context is that of the last recorded moment.")
        args = None if planned.args == call.args else planned.args
        now, failure = await _result_or_failure(self.call_tool(step, args=args))
        return ToolRerun(
            source=recording.source,
            what=f"{planned.what}, call {call.id} of {recording.id}",
            agent=call.agent,
            tool=call.name,
            function_call_id=call.id,
            args=planned.args,
            idempotency_key=planned.idempotency_key,
            recorded=step.result,
            recorded_failure=step.failure,
            now=now,
            failure=failure,
            remarks=[*remarks, *self._missing(recording)],
        )

    async def prompt(self, recording: Recording, event: int) -> JsonObject:
        """Return the prompt that the model call which gave an event would have now, in the form for editing.

        Callbacks up to that point run; the model is not asked.

        Raises:
            NoSuchEvent: There is no such event.
            NoSuchStep: No model gave it.
            NotAsked: A callback answers for the model.
        """
        return request_to_json((await self.request(self._model_step(recording, event))).sent)

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
            NotAPrompt: The prompt is not valid.
            UnknownAgent: The agent is not there.
        """
        step = self._model_step(recording, event)
        replaced = {"system_instruction": instruction, "model": model if isinstance(model, str) else None}
        edits = {} if prompt is None else parse_prompt(prompt)
        edits |= {name: value for name, value in replaced.items() if value is not None}
        requests: list[tuple[LlmRequest, LlmRequest]] = []

        async def ask(own: Callable[[], BaseLlm], request: LlmRequest, on_text: OnText) -> LlmResponse:
            sent = replace(request, **edits)
            requests.append((request, sent))
            if isinstance(model, BaseLlm):
                return await model.generate(sent, on_text=on_text)
            asked = own() if sent.model == request.model else self._models.named(sent.model, step.input.agent)
            return await asked.generate(sent, on_text=on_text)

        call, failure = await _result_or_failure(self.call_model(step, ask=ask))
        reply, request = call or (None, None)
        changed, remarks = _changed(step, request.definition if request else None)
        unedited, sent = map(request_to_json, requests[-1]) if requests else (None, None)
        if sent is None and failure is None:
            remarks.append("A callback spoke for the model, which was not asked.")
        return ModelRerun(
            source=recording.source,
            what=f"model call {step.input.number} of {step.input.agent}, of {recording.id}",
            agent=step.input.agent,
            number=step.input.number,
            request=sent,
            edited=list(json_differences(unedited, sent)),
            changed=changed,
            recorded=step.result,
            recorded_failure=step.failure,
            now=reply,
            failure=failure,
            remarks=[*remarks, *self._missing(recording)],
        )

    async def call_tool(self, step: ToolStep, *, args: JsonObject | None = None) -> ToolOutcome:
        """Run a tool call once, with the callbacks around it; `args` instead of the recorded arguments.

        Raises:
            ApplicationError: The activity fails, as it would on a worker.
        """
        call = step.log.state.calls[step.input.function_call_id]
        given = step.input.model_copy(update={"retries": 0})  # what Temporal would repeat is reported instead
        log = step.log
        if args is not None:
            log = copy.copy(log)
            log.state.calls = {**log.state.calls, call.id: replace(call, args=args)}
            given = given.model_copy(update={"digest": log.state.calls[call.id].approved_digest})
        inputs = _RecordedInputs(log)
        caller = ToolCaller(self.registry, inputs, self._conversations or inputs, services=self._services)
        data = await self._run(log, step.scheduled, f"{call.agent}.{call.name}", caller.call, given)
        return ToolOutcome.model_validate_json(data)

    async def call_model(self, step: ModelStep, *, ask: Ask | None = None) -> tuple[ModelReply, ReplayedRequest | None]:
        """Run a model call with the callbacks around it; also return the request, unless no model was asked.

        The summary, and what `user:` and `app:` state held, are taken from the recorded reply.

        Args:
            step: The call.
            ask: How the model is asked.

        Raises:
            ApplicationError: The activity fails, as it would on a worker.
        """
        definitions: list[str] = []
        models = _InterceptedModels(self._models, ask)
        inputs = _RecordedInputs(step.log, step.result)
        caller = ModelCaller(
            self.registry,
            inputs,
            self._conversations or inputs,
            models,
            search_attributes=False,
            services=self._services,
            scopes=inputs,
            compactor=inputs,
            seen=lambda _, definition: definitions.append(definition),
        )
        try:
            data = await self._run(step.log, step.scheduled, MODEL.name, caller.call, step.input)
        except _StopBeforeModel:
            reply = ModelReply()
        else:
            reply = ModelReply.model_validate_json(data)
        if not (definitions and models.requests):
            return reply, None
        return reply, ReplayedRequest(sent=models.requests[-1], definition=definitions[-1])

    async def request(self, step: ModelStep) -> ReplayedRequest:
        """Return the request of a model call. Callbacks up to that point run; the model is not asked.

        Raises:
            NotAsked: A callback answers for the agent or its model.
            ApplicationError: The request cannot be put together.
        """

        async def stop(_model: Callable[[], BaseLlm], _request: LlmRequest, _on_text: OnText) -> LlmResponse:
            raise _StopBeforeModel

        _, request = await self.call_model(step, ask=stop)
        if request is None:
            raise NotAsked(f"A callback of {step.input.agent!r} speaks for its model, which is not asked.")
        return request

    async def _tool(self, step: ToolStep) -> BaseTool | None:
        """Return the tool that a call would run now; None when the agent does not have it any more.

        Raises:
            UnknownAgent: The agent is not there.
        """
        call, log = step.log.state.calls[step.input.function_call_id], step.log
        root, agent = self.registry.find(step.input.root, call.agent)
        if not isinstance(agent, LlmAgent):
            return None
        contexts = Contexts.of(
            Conversation(log), log.state.runs[call.turn], self._services, scopes_read=root.state_scopes
        )
        return (await tools_for(agent, contexts, wanted=call.name)).get(call.name)

    def _model_step(self, recording: Recording, event: int) -> ModelStep:
        number = model_number(recording, event)
        if number is None:
            raise NoSuchStep(f"No model gave event {event} of {recording.source!r}; `waystation events` lists them.")
        step = model_step(recording, number)
        self.registry.find(step.input.root, step.input.agent)
        return step

    def _missing(self, recording: Recording) -> list[str]:
        started = recording.log.state.input
        if started is None or started.session is None or self._conversations is not None:
            return []
        return ["What was said before in its session was not read, so a model sees only this invocation."]

    async def _run(
        self,
        log: Log,
        scheduled: Mapping[str, Any] | None,
        name: str,
        activity: Callable[[Any], Awaitable[bytes]],
        given: Position,
    ) -> bytes:
        environment = ActivityEnvironment()
        environment.on_heartbeat = self._on_heartbeat
        environment.info = replace(
            environment.info, activity_type=name, workflow_id=log.invocation_id, **(scheduled or {})
        )

        running = asyncio.ensure_future(environment.run(activity, given))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            environment.cancel()  # as a worker does: tools learn of it, and have a moment
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()
            raise


async def rerun_tool(
    recording: Recording,
    event: int,
    *,
    agents: Agents,
    call: str | None = None,
    args: JsonObject | None = None,
    unapproved: bool = False,
    services: Services | None = None,
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
    services: Services | None = None,
) -> ModelRerun:
    """Make the model call again that gave an event, with the prompt as it was, or an edited one.

    Args:
        recording: Where the event is.
        event: That with the reply, or with the error.
        agents: Where the agent is found.
        prompt: Replaces parts of the prompt, such as `{"contents": […]}`; `ModelRerun.request` shows the names.
        instruction: Instead of the system instruction.
        model: A model, or the name of one, that is asked instead; `demo` is the agent's offline demo model.
        services: Where artifacts, memories and credentials are; by default as for a worker in this folder.

    Raises:
        NoSuchEvent: There is no such event.
        NoSuchStep: No model gave it.
        UnknownAgent: The agent is not there.
    """
    given = None if prompt is None else encode(prompt)
    models, model = (Models(DEMO), None) if model == DEMO else (None, model)
    async with Workshop(agents, models=models, services=services) as workshop:
        return await workshop.rerun_model(recording, event, prompt=given, instruction=instruction, model=model)


def request_to_json(request: LlmRequest) -> JsonObject:
    """Return a request in the form for editing, without empty fields other than `contents`."""
    fields = _EditablePrompt.model_fields.items()
    values = {field.alias or name: getattr(request, name) for name, field in fields}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value or name == "contents"
    }


def parse_prompt(text: str | bytes) -> JsonObject:
    """Return the fields of a request that an edited prompt replaces, as keyword arguments of `dataclasses.replace`.

    Raises:
        NotAPrompt: The text is not a prompt, such as `{"contents": […]}`.
    """
    try:
        return _EditablePrompt.model_validate_json(text).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = f" at `{'.'.join(map(str, first['loc']))}`" if first["loc"] else ""
        problem = f"The prompt is not valid{place}: {first['msg']}. See what --write-prompt writes."
        raise NotAPrompt(problem) from None


def registry_of(agents: Agents) -> Registry:
    """Return the agents of a registry or of folders.

    Raises:
        AuthoringError: None can be used; the first mistake.
    """
    if isinstance(agents, Registry):
        return agents
    folders: Sequence[Path | str] = [agents] if isinstance(agents, Path | str) else agents
    registry, problems = discover([Path(folder) for folder in folders])
    if problems and not registry.roots:
        raise problems[0].error
    return registry


async def as_declared(
    found: Prompt,
    recording: Recording,
    context: PromptContext,
    said: Conversation,
    agents: Agents,
    *,
    callbacks: bool = False,
    services: Services | None = None,
) -> Prompt:
    """Return a prompt with everything that the agent's present declaration adds to it.

    Raises:
        UnknownAgent: None of the agents has the name.
        NoPrompt: It has no model now.
        InstructionFailed: Its instruction cannot be put together.
        ApplicationError: A callback raised.
    """
    registry = registry_of(agents)
    root, agent = registry.find(context.log.state.root, context.work.agent)
    if not isinstance(agent, LlmAgent):
        raise NoPrompt(f"Agent {agent.name!r} is {a(agent)} now; it has no model.")
    services = services or lasting_services()
    contexts = Contexts.of(
        said,
        context.work,
        services,
        str(ModelReplyRef(context.call or context.log.state.steps + 1)),
        scopes_read=root.state_scopes,
    )
    request, tools = await ActivityEnvironment().run(_declared_request, agent, context, contexts)
    recorded = context.reply.definition if context.reply else ""
    same = definition_digest(agent, request) == recorded if recorded else None
    functions = _instruction_functions(agent)
    remarks = [*found.remarks, *_remarks(context, functions, same=same)]
    changing = _request_changers(agent, Hooks(agent, root.plugins_of(agent)), tools)
    if changing and callbacks:
        inputs = _RecordedInputs(context.log, said=said)
        workshop = Workshop(registry, services=services, conversations=inputs)
        sent, remark = await _sent_request(recording, context, workshop)
        request = sent or request
        remarks.append(remark)
    elif changing:
        text = f"{', '.join(changing)} may have changed it then, and did not run now; --callbacks (`callbacks=`) runs"
        remarks.append(f"{text} them on this machine.")
    certain = not (found.remarks or changing or functions)
    return replace(
        found,
        contents=request.contents,
        model=request.model,
        instruction=request.system_instruction,
        tools=request.tools,
        native_tools=request.native_tools,
        config=request.config,
        whole=True,
        exact=(True if certain else None) if same else same,
        remarks=remarks,
    )


async def _declared_request(
    agent: LlmAgent, context: PromptContext, contexts: Contexts
) -> tuple[LlmRequest, dict[str, BaseTool]]:
    reply = context.reply
    contexts = contexts.over(reply.scopes if reply else None)
    if reply and reply.before:
        contexts = contexts.after(reply.before.actions)
    tools = {} if context.wrap_up else await tools_for(agent, contexts)
    compaction, attempt = (reply.compaction, reply.attempt) if reply else (None, 1)
    return await request_of(agent, contexts, tools, attempt or 1, compaction, context.wrap_up), tools


def _remarks(context: PromptContext, functions: Sequence[str], *, same: bool | None) -> Iterator[str]:
    if same is False:
        yield "The agent has changed since: model, instruction, tools and settings are as they are now."
    if same is None:
        why = "gave no reply" if context.call else "was not asked"
        yield f"The model {why}, so nothing says whether the agent is still as it was."
    if functions:
        yield f"A function gives the {' and the '.join(functions)}; it was asked now."


def _request_changers(agent: LlmAgent, hooks: Hooks, tools: dict[str, BaseTool]) -> list[str]:
    """Return what may change a request once it is put together."""
    names = [getattr(each, "name", None) or type(each).__name__ for each in (speakers(agent, tools) if tools else ())]
    return [*names, "`before_model_callback`"] if hooks.has("before_model_callback") else names


def _instruction_functions(agent: LlmAgent) -> list[str]:
    """Return which instructions are functions: only their names are in the recorded digest."""
    owners = {"global_instruction": agent.root_agent, "instruction": agent}
    return [name for name, owner in owners.items() if callable(getattr(owner, name, ""))]


async def _sent_request(
    recording: Recording, context: PromptContext, workshop: Workshop
) -> tuple[LlmRequest | None, str]:
    """Return the request after callbacks and tools have changed it, and a remark on that."""
    if context.call is None:
        return None, "Callbacks did not run: they do for model calls that were made."
    try:
        sent = (await workshop.request(model_step(recording, context.call))).sent
    except NotAsked as error:
        return None, f"Callbacks ran now. {error}"
    return sent, "Callbacks ran now, on this machine; what they did then is not recorded."


async def _result_or_failure(replayed: Awaitable[T]) -> tuple[T | None, Failure | None]:
    try:
        return await replayed, None
    except ApplicationError as error:
        return None, Failure(kind="error", error_type=error.type or "Error", message=error.message)


def _chosen(recording: Recording, event: int, call: str | None) -> str:
    """Return the id of the call of an event, or of the one of them that is chosen."""
    calls = calls_in(recording, event)
    where = f"Event {event} of {recording.source!r}"
    if call is not None and call not in calls:
        raise NoSuchStep(f"{where} has no call {call!r}; it has: {', '.join(calls) or 'none'}.")
    if not calls:
        raise NoSuchStep(f"{where} has no tool call; `waystation events` lists them.")
    if call is None and len(calls) > 1:
        raise NoSuchStep(f"{where} has several calls: {', '.join(calls)}. Choose: --call.")
    return call or calls[0]


def _unapproved(recording: Recording, step: ToolStep) -> str | None:
    """Return why a call that never ran has no approval; None when it has one, or needs none."""
    call = recording.log.state.calls[step.input.function_call_id]
    if step.scheduled is not None or call.gate in ("none", "passed"):
        return None
    if call.answer and call.answer.action == "reject":
        return f"{call.answered_by or 'somebody'} rejected it"
    if call.expired:
        return "nobody answered in time"
    return (
        "it still waits for a person"
        if call.gate == "waiting" and not recording.log.state.outcome.ended
        else "nobody answered"
    )


def _changed(step: ModelStep, definition: str | None) -> tuple[bool | None, list[str]]:
    """Return whether the agent has changed since, and a remark on that."""
    if definition is None or step.result is None or not step.result.definition:
        return None, []
    if definition == step.result.definition:
        return False, ["The agent is as it was: same model, instruction, tools and settings."]
    return True, ["The agent has changed since: the prompt has its present instruction, tools and settings."]


class _RecordedInputs:
    """What a recording holds, for activities that read it from histories, stores and scopes."""

    def __init__(self, log: Log, reply: ModelReply | None = None, said: Conversation | None = None) -> None:
        self._log, self._reply, self._said = log, reply, said

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        return self._log

    async def keep(self, data: bytes) -> None:
        pass

    def put(self, run_id: str, ref: EntryRef, body: Body, size: int) -> None:
        pass

    async def conversation(self, log: Log) -> Conversation:
        return Conversation(log, self._said.earlier, self._said.count) if self._said else Conversation(log)

    async def read(self, started: InvocationInput) -> JsonObject:
        return (self._reply.scopes if self._reply else None) or {}

    async def compaction(self, *_: object) -> Compaction | None:
        return self._reply.compaction if self._reply else None


class _InterceptedModels(Models):
    """Models that are asked through a function, and the requests that they were sent."""

    def __init__(self, models: Models, ask: Ask | None) -> None:
        super().__init__()
        self._intercepted, self.ask = models, ask
        self.requests: list[LlmRequest] = []

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        return _InterceptedModel(lambda: self._intercepted.of(agent, demo), self)


class _InterceptedModel(BaseLlm):
    def __init__(self, model: Callable[[], BaseLlm], models: _InterceptedModels) -> None:
        self._model, self._models = model, models

    async def generate(self, request: LlmRequest, *, on_text: OnText = None) -> LlmResponse:
        self._models.requests.append(request)
        ask = self._models.ask
        return await (ask(self._model, request, on_text) if ask else self._model().generate(request, on_text=on_text))

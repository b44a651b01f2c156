"""The activities of an invocation, run again outside of a worker, over its log as it was just before each.

It is the code of the workers, given a recording where they read histories. Nothing is written to a server or a history;
what the code of agents, tools and callbacks does by itself is real.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from waystation.activities.available_tools import tools_for
from waystation.activities.callbacks import close_plugins
from waystation.activities.contexts import Contexts
from waystation.activities.model_call.model_caller import ModelCaller
from waystation.activities.model_choice import Models
from waystation.activities.session_history import Conversations
from waystation.activities.tool_caller import ToolCaller
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.registry import Registry
from waystation.core.compaction import Compaction
from waystation.core.conversation import Conversation
from waystation.core.entry import Body, Failure
from waystation.core.errors import WaystationError
from waystation.core.log import Log
from waystation.core.model_call import ModelReply, Position
from waystation.core.payload import JsonObject
from waystation.core.tool_call import ToolOutcome
from waystation.core.wire import MODEL_ACTIVITY, InvocationInput
from waystation.models import BaseLlm, LlmRequest, LlmResponse
from waystation.replay.steps import ModelStep, Scheduled, ToolStep
from waystation.tools.base_tool import BaseTool
from waystation.tools.services import NO_SERVICES, Services
from waystation.tools.toolbox import close_toolsets

OnText: TypeAlias = Callable[[str], None] | None
Asks: TypeAlias = Callable[[BaseLlm, LlmRequest, OnText], Awaitable[LlmResponse]]
"""How a model is asked: it may be given another request, or not be asked at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it was put together."""

    declared: LlmRequest
    """As the agent declares it, before callbacks and tools changed it."""
    sent: LlmRequest
    definition: str
    """Digest of what the agent declares; equal to that of a recorded reply when the agent has not changed since."""


class NotAsked(WaystationError):
    """Author code spoke for the agent or its model, so that no model is asked."""


class _Stop(BaseException):
    """The request is known, and the model is not to be asked. No author code catches it."""


class Bench:
    """Runs activities with the agents of a registry."""

    def __init__(
        self,
        registry: Registry,
        *,
        models: Models | None = None,
        services: Services = NO_SERVICES,
        conversations: Conversations | None = None,
        on_heartbeat: Callable[..., None] = lambda *_: None,
    ) -> None:
        """Take what a worker would.

        Args:
            registry: The agents.
            models: How model names become models.
            services: Where artifacts, memories and credentials are kept.
            conversations: What reads earlier invocations of a session; without it they are left out.
            on_heartbeat: Is told what activities say while they run.
        """
        self.registry = registry
        self._models, self._services = models or Models(), services
        self._conversations = conversations or _Alone()
        self._on_heartbeat = on_heartbeat

    async def call_tool(self, step: ToolStep, *, args: JsonObject | None = None) -> ToolOutcome:
        """Run a tool call once, with the callbacks around it; `args` instead of the recorded arguments.

        Raises:
            ApplicationError: The activity fails, as it would on a worker.
        """
        call = step.log.calls[step.function_call_id]
        # Once: what Temporal would repeat is told instead.
        given = step.given.model_copy(update={"retries": 0})
        log = step.log
        if args is not None:
            log = copy.copy(log)
            log.calls = {**log.calls, call.id: replace(call, args=args)}
            given = given.model_copy(update={"digest": log.calls[call.id].approved_digest})
        caller = ToolCaller(self.registry, _Recorded(log), self._conversations, services=self._services)
        data = await self._run(log, step.scheduled, f"{call.agent}.{call.name}", caller.call, given)
        return ToolOutcome.model_validate_json(data)

    async def tool(self, step: ToolStep) -> BaseTool | None:
        """Return the tool that a call would run now; None when the agent has it no more.

        Raises:
            UnknownAgent: The agent is not there.
        """
        call, log = step.log.calls[step.function_call_id], step.log
        root, agent = self.registry.find(step.given.root, call.agent)
        if not isinstance(agent, LlmAgent):
            return None
        contexts = Contexts.of(log, log.works[call.turn], self._services, scopes_read=root.state_scopes)
        return (await tools_for(agent, contexts, wanted=call.name)).get(call.name)

    async def close(self) -> None:
        """Close what toolsets, plugins and models hold open."""
        roots = self.registry.roots.values()
        await close_toolsets([root.agent for root in roots])
        await close_plugins([plugin for root in roots for plugin in root.plugins])
        await self._models.close()

    async def call_model(self, step: ModelStep, *, asks: Asks | None = None) -> tuple[ModelReply, Asked | None]:
        """Run a model call with the callbacks around it; also return the request, unless no model was asked.

        The summary, and what `user:` and `app:` state held, are taken from the recorded reply.

        Args:
            step: The call.
            asks: How the model is asked.

        Raises:
            ApplicationError: The activity fails, as it would on a worker.
        """
        recorded = step.reply
        declared: list[tuple[LlmRequest, str]] = []
        sent: list[LlmRequest] = []

        async def asking(model: BaseLlm, request: LlmRequest, on_text: OnText) -> LlmResponse:
            sent.append(request)
            return await (asks or _as_it_is)(model, request, on_text)

        caller = ModelCaller(
            self.registry,
            _Recorded(step.log),
            self._conversations,
            _Asking(self._models, asking),
            search_attributes=False,
            services=self._services,
            scopes=_Scopes(recorded),
            compactor=_Summary(recorded),
            seen=lambda request, definition: declared.append((request, definition)),
        )
        try:
            data = await self._run(step.log, step.scheduled, MODEL_ACTIVITY, caller.call, step.given)
        except _Stop:
            reply = ModelReply()
        else:
            reply = ModelReply.model_validate_json(data)
        if not (declared and sent):
            return reply, None
        request, definition = declared[-1]
        return reply, Asked(declared=request, sent=sent[-1], definition=definition)

    async def prompt(self, step: ModelStep) -> Asked:
        """Return the request of a model call. Callbacks up to that point run; the model is not asked.

        Raises:
            NotAsked: A callback spoke for the agent or its model.
            ApplicationError: The request cannot be put together.
        """

        async def stop(_model: BaseLlm, _request: LlmRequest, _on_text: OnText) -> LlmResponse:
            raise _Stop

        _, asked = await self.call_model(step, asks=stop)
        if asked is None:
            raise NotAsked(f"A callback of {step.given.agent!r} speaks for its model, which is not asked.")
        return asked

    async def _run(
        self,
        log: Log,
        scheduled: Scheduled | None,
        name: str,
        called: Callable[[Any], Awaitable[bytes]],
        given: Position,
    ) -> bytes:
        environment = ActivityEnvironment()
        environment.on_heartbeat = self._on_heartbeat
        about = {} if scheduled is None else scheduled.about()
        environment.info = replace(environment.info, activity_type=name, workflow_id=log.invocation_id, **about)

        async def run() -> bytes:
            return await called(given)

        running = asyncio.ensure_future(environment.run(run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            environment.cancel()  # as a worker does: tools are told, and given a moment
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()
            raise


def failure_of(error: ApplicationError) -> Failure:
    """Return how a log says that an activity failed."""
    return Failure(kind="error", error_type=error.type or "Error", message=error.message)


class _Recorded:
    """The log of a recording, where workers read histories."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def at(self, workflow_id: str, run_id: str, position: Position) -> Log:
        return self._log

    async def keep(self, data: bytes) -> None:
        pass

    def put(self, run_id: str, ref: str, body: Body, size: int) -> None:
        pass


class _Alone:
    async def conversation(self, log: Log) -> Conversation:
        return Conversation(log)


class _Scopes:
    def __init__(self, recorded: ModelReply | None) -> None:
        self._recorded = recorded

    async def read(self, started: InvocationInput) -> JsonObject:
        return (self._recorded.scopes if self._recorded else None) or {}


class _Summary:
    def __init__(self, recorded: ModelReply | None) -> None:
        self._recorded = recorded

    async def compaction(self, *_: object) -> Compaction | None:
        return self._recorded.compaction if self._recorded else None


class _Asking(Models):
    """Models that are asked in another way."""

    def __init__(self, models: Models, asks: Asks) -> None:
        super().__init__()
        self._given, self._asks = models, asks

    def of(self, agent: LlmAgent, demo: object = None) -> BaseLlm:
        return _Model(lambda: self._given.of(agent, demo), self._asks)


class _Model(BaseLlm):
    def __init__(self, model: Callable[[], BaseLlm], asks: Asks) -> None:
        self._model, self._asks = model, asks

    async def generate(self, request: LlmRequest, *, on_text: OnText = None) -> LlmResponse:
        return await self._asks(_Late(self._model), request, on_text)


class _Late(BaseLlm):
    """A model that is looked for when it is asked: a prompt can be seen without a key to the model."""

    def __init__(self, model: Callable[[], BaseLlm]) -> None:
        self._model = model

    async def generate(self, request: LlmRequest, *, on_text: OnText = None) -> LlmResponse:
        return await self._model().generate(request, on_text=on_text)


async def _as_it_is(model: BaseLlm, request: LlmRequest, on_text: OnText) -> LlmResponse:
    return await model.generate(request, on_text=on_text)

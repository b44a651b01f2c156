"""The activity `call_model`: enter and leave agents, have their models asked, and record the reply.

Source of what happens around an agent: adk-semantics 9.4.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from waystation.activities.available_tools import tools_for
from waystation.activities.callbacks import CallbackRaised, Hooks, Misreturned, recorded
from waystation.activities.carry_over import overridden
from waystation.activities.contexts import Contexts
from waystation.activities.heartbeat import Heart, beating
from waystation.activities.log_cache import Logs
from waystation.activities.model_call.annotate import Approvals
from waystation.activities.model_call.compaction import Compactor, Compacts
from waystation.activities.model_call.conversion import content_json
from waystation.activities.model_call.instructions import InstructionFailed
from waystation.activities.model_call.model_turn import ModelTurn, failed, model_failed, too_large, unusable
from waystation.activities.model_call.request import definition_digest, model_name, request_of, speakers
from waystation.activities.model_choice import Models
from waystation.activities.scope_delivery import ReadsScopes
from waystation.activities.session_history import Conversations
from waystation.agents import BaseAgent, LlmAgent
from waystation.agents.registry import Registry, Root
from waystation.agents.tree import shape_of
from waystation.core import ids
from waystation.core.entry import ModelReplied
from waystation.core.errors import (
    ForeignHistory,
    ModelRefused,
    NotJson,
    ScopeNameTooLong,
    StoreFailed,
    UnknownAgent,
    WaystationError,
)
from waystation.core.event import NO_ACTIONS, EventActions, text_of
from waystation.core.log import Log
from waystation.core.model_call import ModelCallInput, ModelReply, Said
from waystation.core.naming import a
from waystation.core.partial import TextWindow
from waystation.core.payload import JsonObject
from waystation.core.settings import ActivitySettings
from waystation.core.shape import AgentShape
from waystation.core.work import Work
from waystation.models import BaseLlm, LlmRequest
from waystation.tools.output_schema import parsed
from waystation.tools.services import NO_SERVICES, Services

events = structlog.get_logger("waystation.activities")

MAX_REPLY_BYTES = 2_000_000
"""Content and annotations together. The server fails, and then repeats, an activity whose result is over 2 MiB."""
_KEPT = ("shape", "compaction", "attempt", "model", "scopes")
"""What is recorded of a reply that is larger."""

Seen: TypeAlias = Callable[[LlmRequest, str], None]


class UserMessageChanged(WaystationError):
    """A plugin wants to replace the message that an invocation was started with, which is recorded."""

    def __init__(self) -> None:
        super().__init__(
            "A plugin's `on_user_message_callback` returned a message, but the one that began the invocation is "
            "recorded; return None, and change what the model is shown in `before_model_callback`."
        )


class ModelCaller:
    """Carries out the activity `call_model`."""

    def __init__(
        self,
        registry: Registry,
        logs: Logs,
        sessions: Conversations,
        models: Models,
        *,
        search_attributes: bool = False,
        services: Services = NO_SERVICES,
        scopes: ReadsScopes | None = None,
        notify: Sequence[str] = (),
        compactor: Compacts | None = None,
        seen: Seen = lambda _request, _definition: None,
        limits: ActivitySettings | None = None,
    ) -> None:
        """`notify` names the channels that are notified of every pending call, unless a policy names others.

        `seen` is called with each request as the agent's declaration makes it, and the digest of that.
        """
        self._registry, self._logs, self._models, self._sessions = registry, logs, models, sessions
        self._services, self._scopes, self._limits = services, scopes, limits or ActivitySettings()
        self.search_attributes = search_attributes
        """Whether the namespace has the search attributes; recorded with each reply."""
        self._notify = tuple(notify)
        self._compactor, self._seen = compactor or Compactor(models), seen

    async def call(self, params: ModelCallInput) -> bytes:
        """Return an encoded `ModelReply`.

        Raises:
            ApplicationError: Typed as an InvocationError, or by the name of what author code raised; retryable when
                another attempt may succeed.
        """
        started = time.perf_counter()
        try:
            reply = await self._reply(params)
        except (
            CallbackRaised,
            ForeignHistory,
            InstructionFailed,
            ScopeNameTooLong,
            StoreFailed,
            UnknownAgent,
            UserMessageChanged,
        ) as error:
            raise _failure(params.agent, error) from None
        about = {
            "search_attributes": self.search_attributes,
            "duration_s": round(time.perf_counter() - started, 4),
            "mark": secrets.token_hex(3),
            "notify": self._notify,
            "wrap_up": params.wrap_up,
        }
        reply = reply.model_copy(update=about)
        data = reply.encode()
        if (size := len(data)) > MAX_REPLY_BYTES:
            kept = ModelReply().model_copy(update={name: getattr(reply, name) for name in (*_KEPT, *about)})
            reply = unusable("MODEL_REPLY_TOO_LARGE", too_large(size, MAX_REPLY_BYTES), reply, kept)
            data = reply.encode()
        # Called when the SDK waits for the server to take the result: it delays nobody.
        asyncio.get_running_loop().call_soon(self._report, activity.info(), params, reply, len(data))
        return data

    def _report(self, info: activity.Info, params: ModelCallInput, reply: ModelReply, size: int) -> None:
        ref = ids.result(ids.model_replied(params.number), reply.mark)
        self._logs.put(info.workflow_run_id or "", ref, ModelReplied(params.number, reply), size)
        events.info(
            "model_call.completed",
            agent=params.agent,
            invocation_id=info.workflow_id,
            number=params.number,
            phase=params.phase,
            attempt=info.attempt,
            duration_s=reply.duration_s,
            calls=len(reply.calls),
            error_code=reply.error_code,
        )

    async def _reply(self, params: ModelCallInput) -> ModelReply:
        info = activity.info()
        root, agent = self._registry.find(params.root, params.agent)
        log = await self._logs.at(info.workflow_id or "", info.workflow_run_id or "", params)
        if params.phase == "turn" and not isinstance(agent, LlmAgent):
            text = f"Agent {agent.name!r} is {a(agent)} now; it has no model that could go on."
            raise failed(agent.name, "InvalidAgent", text)
        agent, work = overridden(agent, log.input), log.works[params.turn]
        hooks = Hooks(agent, root.plugins_of(agent), self._limits.callback_timeout)
        scopes = await self._read_scopes(root, log, params)
        conversation = await self._sessions.conversation(log)
        contexts = Contexts.of(
            log,
            work,
            self._services,
            ids.model_replied(params.number),
            scopes_read=root.state_scopes,
            said=conversation,
            limits=self._limits,
        ).over(scopes)
        with beating() as heart:
            reply = ModelReply()
            if params.phase == "leave":
                reply = ModelReply(after=await _Boundary(agent, work, hooks, contexts).leave())
            elif params.phase == "enter":
                reply = await _Boundary(agent, work, hooks, contexts).enter()
                contexts = contexts.after(reply.before.actions if reply.before else None)
            if isinstance(agent, LlmAgent) and params.phase != "leave" and not reply.skipped:
                compaction = await self._compactor.compaction(root, agent, work, conversation, contexts.step)
                tools = {} if params.wrap_up else await tools_for(agent, contexts)
                request = await request_of(agent, work, contexts, tools, info.attempt, compaction, params.wrap_up)
                definition = definition_digest(agent, request)
                self._seen(request, definition)
                turn = ModelTurn(
                    agent=agent,
                    work=work,
                    contexts=contexts,
                    hooks=hooks,
                    approvals=Approvals(root.rules_of(agent), log.in_force(params.standing)),
                    model=self._model(root, agent),
                    request=request,
                    tools=tools,
                    changing=[] if params.wrap_up else speakers(agent, tools),
                    on_text=_text_listener(heart, log, hooks, number=params.number, attempt=info.attempt),
                )
                priced = log.input is not None and log.input.budget.prices
                update = {"definition": definition, "compaction": compaction, "attempt": info.attempt}
                update |= {"model": model_name(agent) if priced else None}
                reply = await turn.reply(reply.model_copy(update=update))
        return reply.model_copy(update={"scopes": scopes})

    def _model(self, root: Root, agent: LlmAgent) -> BaseLlm:
        try:
            return self._models.of(agent, root.demo_model)
        except ModelRefused as error:
            raise model_failed(agent, error) from None

    async def _read_scopes(self, root: Root, log: Log, params: ModelCallInput) -> JsonObject | None:
        """Return what `user:` and `app:` state holds, when an invocation begins whose agents use it; else None."""
        begins = params.number == 1 and params.phase == "enter" and log.input is not None and log.input.origin is None
        if not (begins and root.state_scopes and self._scopes and log.input):
            return None
        try:
            return await self._scopes.read(log.input) or None
        except RPCError as error:
            raise failed(params.agent, "StoreFailed", f"State is not read: {error.message}", retry=True) from None


def _failure(agent: str, error: WaystationError) -> ApplicationError:
    """Return how Temporal is told that an attempt failed."""
    kind = error.kind if isinstance(error, CallbackRaised | InstructionFailed) else type(error).__name__
    retry = error.passing if isinstance(error, CallbackRaised) else isinstance(error, StoreFailed)
    return failed(agent, kind, str(error), retry=retry)


def _text_listener(heart: Heart, log: Log, hooks: Hooks, *, number: int, attempt: int) -> Callable[[str], None] | None:
    """Return what a model calls with pieces of its text, see `waystation.core.partial`; None when nobody may see it.

    A callback that may change what the model said may hide something of it, so nobody sees it before.
    """
    streaming = log.input is not None and log.input.streaming
    if not streaming or hooks.has("after_model_callback", "on_model_error_callback"):
        return None
    window = TextWindow(agent=hooks.agent.name, number=number, attempt=attempt, mark=secrets.token_hex(3))

    def on_text(text: str) -> None:
        window.add(text)
        heart.tell(lambda: [window.told().model_dump(mode="json")])

    return on_text


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Enters and leaves one agent. Both raise CallbackRaised."""

    agent: BaseAgent
    work: Work
    hooks: Hooks
    contexts: Contexts

    @property
    def _first(self) -> bool:
        """Whether the invocation began with this agent."""
        return self.work.index == 0

    async def enter(self) -> ModelReply:
        """Report the agent's shape, and run the callbacks before it.

        Raises:
            UserMessageChanged: A plugin wants the user's message to be another one.
        """
        shape: AgentShape | None = shape_of(self.agent, self.hooks.plugins, first=self._first)
        if shape == AgentShape(name=self.agent.name):
            shape = None  # the workflow takes an agent to be that by default
        if not self.hooks.plugins and not self.hooks.has("before_agent_callback"):
            return ModelReply(shape=shape)
        context = self.contexts.callback("agent")
        if self._first and self.hooks.plugins:
            message = context.user_content
            params = {"invocation_context": context, "user_message": message}
            if await self.hooks.run_plugins("on_user_message_callback", **params) is not None:
                raise UserMessageChanged
            answer = await self.hooks.run_plugins("before_run_callback", invocation_context=context)
            if answer:
                await self.hooks.run_plugins("after_run_callback", invocation_context=context)
                said = _said(_content(answer, "before_run_callback"), recorded(context, "before_run_callback"))
                return ModelReply(shape=shape, before=said, skipped=True, ends_invocation=True)
        name = "before_agent_callback"
        content = _content(await self.hooks.around_agent(name, context), name)
        if content is not None:
            self._store(context.state, content)
            # An agent that was spoken for is not left: only plugins are told that the invocation is over.
            after = self._first and self.hooks.has("after_run_callback")
            shape = (shape or AgentShape(name=self.agent.name)).model_copy(update={"after": after})
        return ModelReply(shape=shape, before=_said(content, recorded(context, name)), skipped=content is not None)

    async def leave(self) -> Said | None:
        """Run the callbacks after the agent; return what they said and wrote."""
        name, answer = "after_agent_callback", None
        context = self.contexts.callback("agent")
        if not self.work.spoken_for:
            answer = await self.hooks.around_agent(name, context)
        if self._first:
            await self.hooks.run_plugins("after_run_callback", invocation_context=context)
        return _said(_content(answer, name), recorded(context, name))

    def _store(self, state: Any, content: JsonObject) -> None:
        """Store what callbacks said for an LLM agent as if its model had said it."""
        text = text_of(content)
        if not (isinstance(self.agent, LlmAgent) and self.agent.output_key and text):
            return
        if not self.agent.output_schema:
            state[self.agent.output_key] = text
        elif text.strip():
            try:
                state[self.agent.output_key] = parsed(self.agent.output_schema, text)
            except ValueError as error:
                raise CallbackRaised("before_agent_callback", error) from error


def _content(answer: Any, name: str) -> JsonObject | None:
    """Return what a callback returned as a Content in JSON."""
    try:
        return content_json(answer) if answer else None
    except NotJson as error:
        raise CallbackRaised(name, error) from error
    except TypeError:
        raise CallbackRaised(name, Misreturned(answer, "a genai Content")) from None


def _said(content: JsonObject | None, actions: EventActions) -> Said | None:
    if content is None and actions == NO_ACTIONS:
        return None
    return Said(content=content, actions=None if actions == NO_ACTIONS else actions)

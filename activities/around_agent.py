"""What happens around an agent: its shape is told, and callbacks run. Source: adk-semantics 9.4."""

from dataclasses import dataclass
from typing import Any

from waystation.activities.contexts import Contexts
from waystation.activities.hooks import CallbackRaised, Hooks, Misreturned, recorded
from waystation.activities.shaped import content_json
from waystation.agents.base_agent import BaseAgent
from waystation.agents.llm_agent import LlmAgent
from waystation.agents.tree import shape_of
from waystation.core.errors import NotJson, WaystationError
from waystation.core.event import NO_ACTIONS, EventActions, text_of
from waystation.core.model_call import ModelReply, Phase, Said
from waystation.core.payload import JsonObject
from waystation.core.shape import AgentShape
from waystation.core.work import Work
from waystation.tools.output_schema import parsed


class UserMessageChanged(WaystationError):
    """A plugin wants to replace the message that an invocation was started with, which is recorded."""

    def __init__(self) -> None:
        super().__init__(
            "A plugin's `on_user_message_callback` returned a message, but the one that began the invocation is "
            "recorded; return None, and change what the model is shown in `before_model_callback`."
        )


@dataclass(slots=True)
class Around:
    """Enters and leaves one agent at work."""

    agent: BaseAgent
    work: Work
    hooks: Hooks
    contexts: Contexts

    async def reply(self, phase: Phase) -> tuple[ModelReply, Contexts]:
        """Return what is recorded of a phase, before any model call, and the contexts to go on with.

        Raises:
            CallbackRaised: A callback raised.
            UserMessageChanged: A plugin wants the user's message to be another one.
        """
        match phase:
            case "turn":
                return ModelReply(), self.contexts
            case "leave":
                return ModelReply(after=await self._leave()), self.contexts
            case "enter":
                reply = await self._enter()
                return reply, self.contexts.after(reply.before.actions if reply.before else None)

    @property
    def _first(self) -> bool:
        """Whether the invocation began with this agent."""
        return self.work.index == 0

    async def _enter(self) -> ModelReply:
        shape: AgentShape | None = shape_of(self.agent, self.hooks.plugins, first=self._first)
        if shape == AgentShape(name=self.agent.name):
            shape = None  # as the workflow takes an agent to be that it knows nothing of
        if not self.hooks.plugins and not self.hooks.has("before_agent_callback"):
            return ModelReply(shape=shape)
        context = self.contexts.callback("agent")
        if self._first and self.hooks.plugins:
            await self._see_message(context)
            content = await self.hooks.run_hook("before_run_callback", invocation_context=context)
            if content:
                await self.hooks.run_hook("after_run_callback", invocation_context=context)
                told = _told(content, "before_run_callback")
                said = _said(told, recorded(context, "before_run_callback"))
                return ModelReply(shape=shape, before=said, skipped=True, ends_invocation=True)
        content = await self.hooks.around_agent("before_agent_callback", context)
        told = _told(content, "before_agent_callback")
        if told is not None:
            self._store(context.state, told)
            # An agent that was spoken for is not left: only plugins are told that the invocation is over.
            after = self._first and self.hooks.has("after_run_callback")
            shape = (shape or AgentShape(name=self.agent.name)).model_copy(update={"after": after})
        said = _said(told, recorded(context, "before_agent_callback"))
        return ModelReply(shape=shape, before=said, skipped=told is not None)

    async def _see_message(self, context: Any) -> None:
        message = context.user_content
        given = {"invocation_context": context, "user_message": message}
        if await self.hooks.run_hook("on_user_message_callback", **given) is not None:
            raise UserMessageChanged

    async def _leave(self) -> Said | None:
        context = self.contexts.callback("agent")
        content = None
        if not self.work.spoken_for:
            content = await self.hooks.around_agent("after_agent_callback", context)
        if self._first:
            await self.hooks.run_hook("after_run_callback", invocation_context=context)
        told = _told(content, "after_agent_callback")
        return _said(told, recorded(context, "after_agent_callback"))

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


def _told(content: Any, name: str) -> JsonObject | None:
    """Return what a callback returned as a Content in JSON."""
    try:
        return content_json(content) if content else None
    except NotJson as error:
        raise CallbackRaised(name, error) from error
    except TypeError:
        raise CallbackRaised(name, Misreturned(content, "a genai Content")) from None


def _said(content: JsonObject | None, actions: EventActions) -> Said | None:
    if content is None and actions == NO_ACTIONS:
        return None
    return Said(content=content, actions=None if actions == NO_ACTIONS else actions)

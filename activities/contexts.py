"""The contexts that user code receives, and the tools that an agent's model may call."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from waystation.activities.activity_attempt import Heartbeater
from waystation.agents import LlmAgent
from waystation.agents.run_config import RunConfig, StreamingMode
from waystation.agents.toolbox import ToolMap, ToolsetFailure, list_tools
from waystation.agents.tree import transfer_targets
from waystation.core import ids
from waystation.core.contract import (
    ActivitySettings,
    Event,
    EventActions,
    InvocationInput,
    ToolCallInput,
    ToolConfirmation,
)
from waystation.core.conversation import Conversation
from waystation.core.log import AgentRun, CallState, Log, SessionState
from waystation.core.payload import JsonObject, copy_json
from waystation.tools import BaseTool, CallbackContext, ReadonlyContext, ToolContext
from waystation.tools.memoize import memoize
from waystation.tools.native_tool import NativeTool
from waystation.tools.output_schema import SetModelResponseTool
from waystation.tools.services import NO_SERVICES, Services
from waystation.tools.session_view import Session
from waystation.tools.state import State
from waystation.tools.transfer import TransferToAgentTool


@dataclass(frozen=True)
class Contexts:
    """Builds contexts for one agent run, based on one version of the state."""

    conversation: Conversation
    """The invocation's log, and the earlier events of its session."""
    work: AgentRun
    state: JsonObject
    services: Services = NO_SERVICES
    step: str = ""
    """The activity's ID. The idempotency keys of callbacks are derived from it."""
    scopes_read: bool = True
    """Whether the state includes the stored `user:` and `app:` keys."""
    limits: ActivitySettings = field(default_factory=ActivitySettings)

    @classmethod
    def of(
        cls,
        conversation: Conversation,
        work: AgentRun,
        services: Services = NO_SERVICES,
        step: str = "",
        *,
        scopes_read: bool = True,
        limits: ActivitySettings | None = None,
    ) -> "Contexts":
        """Return contexts with the state that the invocation's log records."""
        state = conversation.log.state.session.values
        return cls(conversation, work, state, services, step, scopes_read, limits or ActivitySettings())

    @property
    def log(self) -> Log:
        """The invocation's log."""
        return self.conversation.log

    def over(self, scopes: JsonObject | None) -> "Contexts":
        """Return the same contexts, with `scopes` added: `user:` and `app:` state that is not in the log yet.

        Keys that already have a value keep it.
        """
        return replace(self, state={**scopes, **self.state}) if scopes else self

    def after(self, actions: EventActions | None) -> "Contexts":
        """Return the same contexts, with `actions` applied to the state."""
        if actions is None:
            return self
        fold = SessionState(self.state)
        fold.apply(actions)
        return replace(self, state=fold.values)

    def readonly(self) -> ReadonlyContext:
        """Return the context for instruction providers and toolsets."""
        return ReadonlyContext(**self._fields())

    def callback(self, around: str) -> CallbackContext:
        """Return the context for the callbacks around the agent, the model or the instruction.

        Each value of `around` (`agent`, `model`, `instruction`) has its own idempotency key.
        """
        key = ids.idempotency_key(self.log.invocation_id, f"{self.step}/{around}")
        return CallbackContext(idempotency_key=key, services=self.services, **self._fields())

    def proposed(self, function_call_id: str, tool: str) -> ToolContext:
        """Return the context for approval predicates, and for calls that run without an activity."""
        return ToolContext(
            function_call_id=function_call_id,
            idempotency_key=ids.idempotency_key(self.log.invocation_id, function_call_id),
            services=self.services,
            **self._fields(tool),
        )

    def call(
        self,
        call: CallState,
        params: ToolCallInput,
        attempt: int,
        is_aborted: Callable[[], bool],
        heart: Heartbeater,
        make_completion_url: Callable[[timedelta | None], str] | None = None,
        *,
        is_held: bool = False,
    ) -> ToolContext:
        """Return the context for a tool that runs in its activity.

        `is_aborted` returns whether the tool should stop, and may be called from any thread.
        """
        confirmation = params.confirmation or call.tool_confirmation()
        retry_s = self.limits.store_retry.total_seconds()
        return ToolContext(
            function_call_id=call.id,
            idempotency_key=ids.idempotency_key(self.log.invocation_id, call.id),
            attempt=attempt,
            tool_confirmation=ToolConfirmation.model_validate(confirmation) if confirmation else None,
            heartbeat=heart.record,
            is_aborted=is_aborted,
            is_held=is_held,
            make_completion_url=make_completion_url,
            # The tool should not be stopped while it waits for a store.
            store_retry_s=min(retry_s, params.timeout_s / 2) if params.timeout_s else retry_s,
            services=self.services,
            **self._fields(call.name),
        )

    def _fields(self, tool: str = "") -> JsonObject:
        state = State(self.state, tool=tool, scopes_read=self.scopes_read)
        return {**self._shared_fields, "state": state, "tool_name": tool}

    @functools.cached_property
    def _shared_fields(self) -> JsonObject:
        # Compute these fields only once, because they do not depend on the state.
        started = self.log.state.input
        user = next((event.content for event in self.log.state.events if event.author == "user"), None)
        fields: JsonObject = {
            "invocation_id": self.log.invocation_id,
            "agent_name": self.work.agent,
            "branch": self.work.branch,
            "user_content": user,
            "resources": self.services.resources,
        }
        if started is None:
            return fields
        session = Session(
            id=started.session_id or started.family or self.log.invocation_id,
            app_name=ids.shown_app(started.app_key),
            user_id=started.user_id,
            events=_PastEvents(self.conversation, self.conversation.count + len(self.log.state.events)),
        )
        return fields | {
            "user_id": started.user_id,
            "session_id": started.session_id,
            "tenant": started.tenant,
            "session": session,
            "custom_metadata": started.metadata,
            "run_config": _run_config(started),
        }


@dataclass(frozen=True, slots=True)
class _PastEvents:
    """The first `count` events of a conversation. They are not copied, because few tools read them."""

    conversation: Conversation
    count: int

    def __iter__(self) -> Iterator[Event]:
        return itertools.islice(self.conversation.events, self.count)


def _run_config(started: InvocationInput) -> RunConfig:
    config = _frozen_run_config(max(started.budget.max_llm_calls, 1), streaming=started.streaming)
    if not started.metadata:
        return config
    return config.model_copy(update={"custom_metadata": copy_json(started.metadata)})


@functools.lru_cache(maxsize=128)
def _frozen_run_config(max_llm_calls: int, *, streaming: bool) -> RunConfig:
    # Share equal objects, because every tool call receives one, but few tools read it.
    mode = StreamingMode.SSE if streaming else StreamingMode.NONE
    return RunConfig(max_llm_calls=max_llm_calls, streaming_mode=mode)


async def tools_for(
    agent: LlmAgent, contexts: Contexts, *, wanted: str | None = None, failed: list[ToolsetFailure] | None = None
) -> ToolMap:
    """Return the agent's tools by name, including `set_model_response` and the transfer tool if the agent needs them.

    See `list_tools` for `wanted` and `failed`.
    """
    limit = contexts.limits.toolset_timeout
    tools = await list_tools(agent, contexts.readonly, wanted=wanted, failed=failed, limit=limit)
    return ToolMap(_adk_tools(agent) | tools, tools.origins)


def _adk_tools(agent: LlmAgent) -> dict[str, BaseTool]:
    schema = agent.output_schema if agent.tools else None
    targets = [target.name for target in transfer_targets(agent)]

    def make() -> dict[str, BaseTool]:
        tools: list[BaseTool] = [SetModelResponseTool(schema)] if schema else []
        if targets:
            tools.append(TransferToAgentTool(targets))
        return {tool.name: tool for tool in tools}

    return memoize(agent, "_adk_tools", (schema, targets), make)


def callable_tools(tools: Mapping[str, BaseTool]) -> dict[str, BaseTool]:
    """Return the tools that a model may call, excluding those that its provider runs."""
    return {name: tool for name, tool in tools.items() if not isinstance(tool, NativeTool)}


def unknown_tool(name: str, tools: Mapping[str, BaseTool]) -> str:
    """Return the error message for a call to a tool that does not exist. The wording matches ADK 2.13."""
    names = ", ".join(callable_tools(tools)) or "none"
    return (
        f"Invoking `{name}()` failed as no tool with that name is available. The tools you can call are: {names}. "
        "You could retry, but it is IMPORTANT that you only call a tool from that list."
    )

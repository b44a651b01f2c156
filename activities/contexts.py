"""The contexts in which author code runs: made here, so that whatever they offer is offered everywhere."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from waystation.activities.activity_attempt import Heart
from waystation.agents.readonly_context import ReadonlyContext
from waystation.agents.run_config import RunConfig, StreamingMode
from waystation.core import (
    ActivitySettings,
    AgentRun,
    CallState,
    Conversation,
    EventActions,
    InvocationInput,
    JsonObject,
    Log,
    SessionState,
    ToolCallInput,
    ToolConfirmation,
    copy_json,
    ids,
)
from waystation.tools.services import Services
from waystation.tools.session import Session
from waystation.tools.state import State
from waystation.tools.tool_context import CallbackContext, ToolContext


@dataclass(frozen=True)
class Contexts:
    """Makes contexts for one agent at work, over one state."""

    log: Log
    agent: str
    branch: str | None
    state: JsonObject
    services: Services
    step: str = ""
    """Id of the activity, for what callbacks do in it."""
    said: Conversation | None = None
    """What the invocation is part of, when there were earlier ones."""
    scopes_read: bool = True
    """Whether the state has the `user:` and `app:` keys that are stored."""
    limits: ActivitySettings = field(default_factory=ActivitySettings)

    @classmethod
    def of(
        cls,
        log: Log,
        work: AgentRun,
        services: Services,
        step: str = "",
        said: Conversation | None = None,
        *,
        scopes_read: bool = True,
        limits: ActivitySettings | None = None,
    ) -> "Contexts":
        """Return what makes contexts for `work`, with the state as it is recorded."""
        limits = limits or ActivitySettings()
        return cls(log, work.agent, work.branch, log.state.session.values, services, step, said, scopes_read, limits)

    @property
    def conversation(self) -> Conversation:
        """What was said before the invocation and in it."""
        return self.said or Conversation(self.log)

    def over(self, scopes: JsonObject | None) -> "Contexts":
        """Return the same over what `user:` and `app:` state holds, which is in no log yet."""
        return replace(self, state={**scopes, **self.state}) if scopes else self

    def after(self, actions: EventActions | None) -> "Contexts":
        """Return the same over the state as it is once `actions` have been applied."""
        if actions is None:
            return self
        fold = SessionState(self.state)
        fold.apply(actions)
        return replace(self, state=fold.values)

    def readonly(self) -> ReadonlyContext:
        """Return the context of instruction providers and toolsets."""
        return ReadonlyContext(**self._about())

    def callback(self, around: str) -> CallbackContext:
        """Return the context of callbacks; `around` tells those of one activity apart: `agent` or `model`."""
        key = ids.idempotency_key(self.log.invocation_id, f"{self.step}/{around}")
        return CallbackContext(idempotency_key=key, **self._about())

    def proposed(self, call_id: str, tool: str) -> ToolContext:
        """Return the context of a call that is only being looked at: predicates, and calls that no activity runs."""
        return ToolContext(
            function_call_id=call_id,
            idempotency_key=ids.idempotency_key(self.log.invocation_id, call_id),
            **self._about(tool),
        )

    def call(
        self, call: CallState, given: ToolCallInput, attempt: int, is_aborted: Callable[[], bool], heart: Heart
    ) -> ToolContext:
        """Return the context in which a tool runs, inside its activity. `is_aborted` is asked from any thread."""
        confirmation = given.confirmation or call.tool_confirmation()
        return ToolContext(
            function_call_id=call.id,
            idempotency_key=ids.idempotency_key(self.log.invocation_id, call.id),
            attempt=attempt,
            tool_confirmation=ToolConfirmation.model_validate(confirmation) if confirmation else None,
            heartbeat=heart.hear,
            is_aborted=is_aborted,
            **self._about(call.name),
        )

    def _about(self, tool: str = "") -> JsonObject:
        state = State(self.state, tool=tool, scopes_read=self.scopes_read)
        return {**self._everywhere, "state": state, "tool_name": tool}

    @functools.cached_property
    def _everywhere(self) -> JsonObject:
        """What all of them are told alike, whatever becomes of their states."""
        started = self.log.state.input
        user = next((event.content for event in self.log.state.events if event.author == "user"), None)
        about: JsonObject = {
            "invocation_id": self.log.invocation_id,
            "agent_name": self.agent,
            "branch": self.branch,
            "user_content": user,
            "services": self.services,
        }
        if started is None:
            return about
        session = Session(
            id=started.session_id or started.family or self.log.invocation_id,
            app_name=started.app,
            user_id=started.user_id,
            events=tuple(self.conversation.events),
        )
        return about | {
            "user_id": started.user_id,
            "session_id": started.session_id,
            "session": session,
            "custom_metadata": started.metadata,
            "run_config": _run_config(started),
        }


def _run_config(started: InvocationInput) -> RunConfig:
    """Return how the invocation was asked to run."""
    config = _frozen_run_config(max(started.budget.max_llm_calls, 1), streaming=started.streaming)
    if not started.metadata:
        return config
    return config.model_copy(update={"custom_metadata": copy_json(started.metadata)})


@functools.lru_cache(maxsize=128)
def _frozen_run_config(max_llm_calls: int, *, streaming: bool) -> RunConfig:
    # Made once, since each call of a tool has one, and few tools look.
    mode = StreamingMode.SSE if streaming else StreamingMode.NONE
    return RunConfig(max_llm_calls=max_llm_calls, streaming_mode=mode)

"""Agents of google-adk with a `_run_async_impl` of their own.

The body runs in activities, each time from its start. Its sub-agents do not run there: the workflow runs them, and the
body receives their recorded events.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.plugins.base_plugin import BasePlugin
from pydantic import PrivateAttr

from waystation import events
from waystation.adk.context_adapter import AdkContexts, to_adk_event
from waystation.agents.custom_agent import BodyChanged, BodyFailed, BodyResult, BodySegment, CustomAgent
from waystation.core import contract
from waystation.core.contract import ENGINE_METADATA, BodyEvent
from waystation.core.payload import JsonObject, copy_json, to_plain_json
from waystation.events.lazy_list import LazyList
from waystation.tools import CallbackContext

T = TypeVar("T")


class ReplayableAgent(CustomAgent):
    """An agent of google-adk that is marked as replayable."""

    _contexts: AdkContexts = PrivateAttr()
    _adk: Any = PrivateAttr()

    @classmethod
    def of(cls, contexts: AdkContexts, agent: Any, fields: JsonObject) -> ReplayableAgent:
        """Adapt an agent. `fields` are the fields that all agents have."""
        adapted = cls(**fields)
        adapted._contexts, adapted._adk = contexts, agent
        return adapted

    async def run_body(self, context: CallbackContext, segments: Sequence[BodySegment]) -> BodyResult:
        """See `CustomAgent`."""
        with self._contexts.using(context) as adk:
            replay = _Replay(self._adk, adk._invocation_context, context.session.events, segments)
            await replay.run()
        agent = next((child for child in self.sub_agents if child.name == replay.begins), None)
        return BodyResult(tuple(map(_to_body_event, replay.yielded)), agent)


def _to_body_event(event: Event) -> BodyEvent:
    recorded = contract.Event.model_validate(event.model_dump(mode="json", by_alias=True, exclude_none=True))
    if recorded.function_calls() or recorded.function_responses():
        raise BodyFailed("A body yielded an event with a function call or response; only sub-agents can call tools.")
    fields = {name: getattr(recorded, name) for name in BodyEvent.model_fields}
    metadata = {key: value for key, value in (recorded.custom_metadata or {}).items() if key not in ENGINE_METADATA}
    fields |= {"custom_metadata": metadata or None}
    return BodyEvent(**{**fields, "actions": None if recorded.actions == contract.NO_ACTIONS else recorded.actions})


class _Stopped(BaseException):
    """Ends a body. It is not an Exception, so that a body does not handle it as an error of a sub-agent."""


class _OtherAgents(BasePlugin):
    """Stops a body that runs an agent itself."""

    def __init__(self, stop: Callable[[str], NoReturn]) -> None:
        super().__init__(name="waystation_replayable")
        self._stop = stop

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        self._stop(f"runs {agent.name!r}, which is not in its `sub_agents`; add the agent there.")


class _Replay:
    """One run of a body: the recorded steps, which it repeats, and the new steps after them."""

    def __init__(
        self, agent: Any, invocation: InvocationContext, past: Sequence[Any], segments: Sequence[BodySegment]
    ) -> None:
        """`past` is the session's events."""
        self._name, self._session, self._past = agent.name, invocation.session, past
        self._task = asyncio.current_task()
        self._recorded: deque[contract.Event | BodySegment] = deque()
        for segment in segments[:-1]:
            self._recorded.extend((*segment.yielded, segment))
        self._following = deque(segments)
        self._due: BodySegment | None = self._following.popleft()
        """The segment that begins with the body's next step, or None if the current segment continues."""
        self._number = 0
        """Number of steps so far."""
        self._shown: JsonObject = {}
        """The session's state without what the body has written into it."""
        self._received: dict[int, Event] = {}
        """The events of sub-agents that the body has received, by their `id()`."""
        self._failure: BodyFailed | None = None
        self.yielded: list[Event] = []
        """The body's events since the last recorded step."""
        self.begins: str | None = None
        """The name of the sub-agent to run next, or None if the body has ended."""
        self._session.state.clear()
        invocation.plugin_manager.plugins.insert(0, _OtherAgents(self._stop))
        # A copy, because the author's agent may run in other activities at the same time.
        self._invocation = invocation
        self._body = invocation.agent = _replace_agents(
            agent, {id(sub): self._stand_in(sub) for sub in agent.sub_agents}
        )

    async def run(self) -> None:
        """Run the body until it runs a sub-agent that has not run yet, or ends.

        Raises:
            BodyFailed: The body does what cannot be replayed, or other steps than those recorded.
        """
        self._begin_segment()
        try:
            async with aclosing(self._body._run_async_impl(self._invocation)) as body:
                async for event in body:
                    self._take(event)
            if self._recorded:
                self._next("end", type(None))
        except asyncio.CancelledError:
            raise
        except BaseException:
            if not (self._failure or self.begins):
                raise
        if self._failure:
            raise self._failure

    def _stop(self, problem: str | BodyFailed) -> NoReturn:
        failure = BodyFailed(f"The body of {self._name!r} {problem}") if isinstance(problem, str) else problem
        self._failure = self._failure or failure
        raise _Stopped

    def _next(self, now: str, kind: type[T]) -> T | None:
        """Begin the body's next step. Return the recorded step, which must be of a `kind`, or None if it is new."""
        if self._failure or self.begins:  # the body has caught what was to stop it
            raise _Stopped
        self._begin_segment()
        self._number += 1
        if not self._recorded:
            return None
        step = self._recorded.popleft()
        recorded = f"run {step.agent!r}" if isinstance(step, BodySegment) else "yield an event"
        if recorded != now or not isinstance(step, kind):
            self._stop(BodyChanged(self._name, self._number, recorded, now))
        return step

    def _take(self, event: Any) -> None:
        """Record an event of the body. The events of sub-agents are recorded already, and partial ones never are."""
        if id(event) in self._received or event.partial:
            return
        recorded = self._next("yield an event", contract.Event)
        if recorded is None:
            # When the body runs again, it receives the recorded form, so it has to see that form now.
            event.actions.state_delta = to_plain_json(event.actions.state_delta)
            self.yielded.append(event)
        self._apply(event if recorded is None else to_adk_event(events.Event.from_recorded(recorded)))

    def _stand_in(self, agent: Any) -> Any:
        """Return a copy of a sub-agent that yields its recorded events."""
        copy = agent.model_copy()
        vars(copy)["run_async"] = functools.partial(self._run_agent, agent.name)
        return copy

    async def _run_agent(self, name: str, parent_context: InvocationContext) -> AsyncIterator[Event]:
        if asyncio.current_task() is not self._task:
            self._stop(f"runs {name!r} in another task; put agents that run at the same time into a ParallelAgent.")
        if parent_context.branch != self._invocation.branch:
            self._stop(f"runs {name!r} on another branch; put agents on separate branches into a ParallelAgent.")
        step = self._next(f"run {name!r}", BodySegment)
        if step is None:
            changed = {key for key in {*self._shown, *self._session.state} if self._is_written(key)}
            if changed:
                self._stop(
                    f"wrote the state {min(changed)!r} before it runs {name!r}, which would not see it; yield an event "
                    "with the `state_delta`."
                )
            self.begins = name
            raise _Stopped
        self._due = self._following.popleft()
        for recorded in step.events:
            event = to_adk_event(events.Event.from_recorded(recorded))
            self._received[id(event)] = event
            yield event
            self._apply(event)
        self._begin_segment()

    def _is_written(self, key: str) -> bool:
        missing = object()
        return bool(self._shown.get(key, missing) != self._session.state.get(key, missing))

    def _apply(self, event: Event) -> None:
        """Show an event and its changes of state, as when google-adk appends the event to the session."""
        self._show({**self._shown, **event.actions.state_delta})
        self._session.events.append(event)

    def _begin_segment(self) -> None:
        """Show the session as it was when the next segment began, if that segment is due."""
        if segment := self._due:
            self._due = None
            self._show(segment.state)
            self._session.events = LazyList(range(segment.seen), lambda index: to_adk_event(self._past[index]))

    def _show(self, state: JsonObject) -> None:
        """Change the session's state where the recorded state changes, and leave what else the body has written."""
        shown = self._session.state
        for key in self._shown.keys() - state.keys():
            shown.pop(key, None)
        for key, value in state.items():
            if key not in self._shown or self._shown[key] != value:
                shown[key] = copy_json(value)
        self._shown = dict(state)


def _replace_agents(agent: Any, copies: Mapping[int, Any]) -> Any:
    """Return a copy of an agent whose fields contain the copies of its sub-agents."""

    def replace(value: Any) -> Any:
        match value:
            case list() | tuple():
                return type(value)(map(replace, value))
            case dict():
                return {key: replace(item) for key, item in value.items()}
        return copies.get(id(value), value)

    copy = agent.model_copy()
    for fields in (vars(copy), copy.__pydantic_private__ or {}):
        fields.update({name: replace(value) for name, value in fields.items() if name != "parent_agent"})
    return copy

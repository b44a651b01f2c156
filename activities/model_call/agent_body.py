"""Run the body of a custom agent again from its start, with the recorded results of its sub-agents."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from waystation.activities.callbacks import CallbackRaised
from waystation.activities.contexts import Contexts
from waystation.agents.custom_agent import BodyFailed, BodySegment, CustomAgent
from waystation.agents.tree import create_agent_spec
from waystation.core.contract import Event
from waystation.core.log import ModelReplied, SessionState
from waystation.core.payload import JsonObject, copy_json
from waystation.plugins import BasePlugin

MAX_SEGMENTS = 1_000
"""Maximum number of sub-agents that one run of a custom agent may run. Each of them makes the body run again."""


async def continue_body(agent: CustomAgent, contexts: Contexts, plugins: Sequence[BasePlugin]) -> JsonObject:
    """Run a body until it runs a sub-agent that has not run yet, or ends. Return the fields of the reply.

    Raises:
        BodyFailed: The body does what cannot be replayed, or other steps than those recorded.
        CallbackRaised: The body raised an exception.
    """
    work = contexts.work
    if len(work.segments) >= MAX_SEGMENTS:
        raise BodyFailed(f"The body of {agent.name!r} ran {MAX_SEGMENTS:,} sub-agents, which is the limit.")
    seen = contexts.conversation.count + len(contexts.log.state.events)
    segments = [*_recorded_segments(contexts), BodySegment(state=contexts.state, seen=seen)]
    # The same key for each run of the body, so that what an earlier run has saved is not saved again.
    context = replace(contexts, step=f"body-{work.index}").callback("agent")
    try:
        async with asyncio.timeout(contexts.limits.callback_timeout.total_seconds()):
            result = await agent.run_body(context, segments)
    except BodyFailed:
        raise
    except Exception as error:
        raise CallbackRaised(f"the body of {agent.name!r}", error) from error
    begins = create_agent_spec(result.agent, plugins) if result.agent else None
    return {"yielded": result.yielded, "begins": begins}


def _recorded_segments(contexts: Contexts) -> Iterator[BodySegment]:
    """Yield the segments of the agent run that ended with a sub-agent, in order."""
    log, work, earlier = contexts.log, contexts.work, contexts.conversation.count
    events, started = log.state.events, log.state.input
    replies = (entry.body.reply for entry in log.entries if isinstance(entry.body, ModelReplied))
    stored = next((reply.scopes for reply in replies if reply.scopes), {})
    fold, folded = SessionState({**stored, **(started.state if started else {})}), 0
    ends = [*(began for began, *_ in work.segments[1:]), len(events)]
    for (began, first, last, child), end in zip(work.segments, ends, strict=False):
        for event in events[folded:began]:
            fold.apply(event.actions)
        state, folded = SessionState(fold.values), began
        # Before its first segment, the agent has no other events than that of its `before_agent` callbacks.
        for event in events[began:first] if (began, first, last, child) == work.segments[0] else ():
            if (event.author, event.branch) == (work.agent, work.branch):
                state.apply(event.actions)
        yield BodySegment(
            state=copy_json(state.values),
            seen=earlier + began,
            yielded=tuple(events[first:last]),
            agent=log.state.runs[child].agent,
            events=tuple(event for event in events[last:end] if _is_of_sub_agent(event, work.branch)),
        )


def _is_of_sub_agent(event: Event, branch: str | None) -> bool:
    """Return whether an event that followed the start of a sub-agent is the sub-agent's.

    The others are from the user, from the engine, or from agents on other branches.
    """
    is_below = branch is None or event.branch == branch or (event.branch or "").startswith(f"{branch}.")
    return is_below and event.author != "user"

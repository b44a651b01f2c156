"""What an agent's words mean beside being said: the state key they are stored under, the structure they have to have.

Source: adk-semantics 9.3.
"""

import json
from typing import Any

from waystation.agents.llm_agent import LlmAgent
from waystation.core.event import EventActions, text_of
from waystation.core.log import Log
from waystation.core.model_call import ModelReply, Said
from waystation.core.payload import JsonObject
from waystation.core.work import Work
from waystation.tools.output_schema import OUTPUT_SCHEMA, parsed


def stored(agent: LlmAgent, work: Work, log: Log, content: JsonObject | None) -> JsonObject:
    """Return what `output_key` stores when the agent says `content`: all that it said in this turn, joined.

    Once it has said something without calling anything, only a late answer makes it go on, and that is a new turn.
    """
    if not agent.output_key or agent.output_schema or not (text := text_of(content)):
        return {}
    said = [
        event for event in log.events[work.entered_at :] if event.author == agent.name and event.branch == work.branch
    ]
    # Not function responses: the text beside one is what a called agent said.
    spoken = [event for event in said if text_of(event.content) and not event.function_responses()]
    ends = [i for i, event in enumerate(spoken) if not event.function_calls()]
    before = "".join(text_of(event.content) for event in spoken[ends[-1] + 1 if ends else 0 :])
    return {agent.output_key: before + text}


def structured(agent: LlmAgent, reply: ModelReply, state: JsonObject) -> ModelReply:
    """Return a final reply with what it says, parsed; or, when that does not fit, with an error that says so.

    `state` gains what `output_key` stores.
    """
    text = text_of(reply.content)
    if not agent.output_schema or reply.calls or reply.error_code or not text.strip():
        return reply
    try:
        value = parsed(agent.output_schema, text)
    except ValueError as error:
        problem = f"The answer of {agent.name!r} does not fit its output_schema: {error}"
        return reply.model_copy(update={"error_code": OUTPUT_SCHEMA, "error_message": problem})
    if agent.output_key:
        state[agent.output_key] = value
    return reply.model_copy(update={"output": output_of(value)})


def closing_of(agent: LlmAgent, value: Any) -> Said:
    """Return the text event by which a structured answer ends the agent's turn."""
    text = json.dumps(value, ensure_ascii=False)
    actions = EventActions(state_delta={agent.output_key: value}) if agent.output_key else None
    return Said(content={"role": "model", "parts": [{"text": text}]}, actions=actions)


def output_of(value: Any) -> JsonObject:
    """Return a structured answer as the object that a caller reads; what is none is wrapped as a tool's result is."""
    return value if isinstance(value, dict) else {"result": value}

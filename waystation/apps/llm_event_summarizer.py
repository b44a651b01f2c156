"""Mirrors ADK's `google.adk.apps.llm_event_summarizer`, with the prompt and format of ADK 2.13."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

from waystation.apps import BaseEventsSummarizer
from waystation.core.errors import ModelError, ModelRefused
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject
from waystation.models import BaseLlm, LlmRequest

if TYPE_CHECKING:
    from waystation.events import Event

CREDENTIAL_REQUEST = "adk_request_credential"


class LlmEventSummarizer(BaseEventsSummarizer):
    """Writes summaries of older events with a language model."""

    _DEFAULT_PROMPT_TEMPLATE = (
        "The following is a conversation history between a user and an AI agent."
        " It may or may not start from a compacted history. Please identify and"
        " reiterate the user request, summarize the context so far, focusing on"
        " key decisions made and information obtained, as well as any unresolved"
        " questions or tasks. "
        "CRITICAL INSTRUCTIONS: "
        "1. Explicitly identify and state the primary language used by the user "
        'at the top of your summary (e.g., "Conversation Language: English"). '
        "2. If the agent called any tools, accurately list the exact tool names "
        "used to maintain tool grounding. "
        "The rest of the summary should be concise and capture the"
        " essence of the interaction.\n\n{conversation_history}"
    )
    _MAX_TOOL_CONTENT_CHARS = 2000

    def __init__(self, llm: BaseLlm | str, prompt_template: str | None = None) -> None:
        """Create a summarizer.

        Args:
            llm: A model, or a model name, which is resolved in the same way as an agent's `model`.
            prompt_template: A prompt that contains the placeholder `{conversation_history}`.
        """
        if not isinstance(llm, BaseLlm | str):
            raise TypeError(f"llm is {with_article(llm)}; pass a model or a model name.")
        self.llm = llm
        """The model, or the name of a model that is resolved later."""
        self._name = llm if isinstance(llm, str) else str(getattr(llm, "model", None) or type(llm).__name__)
        self._prompt_template = prompt_template or self._DEFAULT_PROMPT_TEMPLATE
        if "{conversation_history}" not in self._prompt_template:
            raise ValueError("prompt_template lacks {conversation_history}; add this placeholder for the events.")

    def using(self, llm: BaseLlm) -> Self:
        """Return a copy of the summarizer that uses the given model."""
        bound = copy.copy(self)
        bound.llm = llm
        return bound

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """Return an event that contains the model's summary, or None if there are no events or the reply is empty.

        Raises:
            ModelError: The model returned an error, or `llm` is only a name.
        """
        if not events:
            return None
        if isinstance(self.llm, str):
            raise ModelRefused(f"The summarizer's model is only a name, {self.llm!r}. Pass a model object instead.")
        text = self._prompt_template.format(conversation_history=self._format_events_for_prompt(events))
        contents: list[JsonObject] = [{"role": "user", "parts": [{"text": text}]}]
        response = await self.llm.generate(LlmRequest(model=self._name, contents=contents))
        if response.error_code:
            raise ModelError(f"The summarizer's model stopped with {response.error_code}.")
        if not response.content:
            return None
        # Imported here because they load google-genai, which takes long.
        from waystation.events import EventActions, EventCompaction
        from waystation.events.event import Event, to_content, to_usage_metadata

        compaction = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=to_content({**_plain(response.content), "role": "model"}),
        )
        return Event(
            author="user",
            actions=EventActions(compaction=compaction),
            invocation_id=Event.new_id(),
            usage_metadata=to_usage_metadata(response.usage.model_dump()) if response.usage else None,
            model_version=response.model_version or self._name,
        )

    def _format_events_for_prompt(self, events: list[Event]) -> str:
        """Return the events as text: messages, thoughts, tool calls and tool responses.

        Requests for credentials are left out, and long arguments and responses are truncated.
        """
        lines: list[str] = []
        for event in events:
            parts = _plain(event.content).get("parts") or []
            for part in () if any(map(_names_a_credential, parts)) else parts:
                if text := part.get("text"):
                    lines.append(f"{event.author}{' (thought)' if part.get('thought') else ''}: {text}")
                if call := part.get("functionCall"):
                    args = self._truncate(str(call.get("args")))
                    lines.append(f"{event.author} called tool: {call.get('name')}({args})")
                if answer := part.get("functionResponse"):
                    response = self._truncate(str(answer.get("response")))
                    lines.append(f"Tool response from {answer.get('name')}: {response}")
        return "\n".join(lines)

    def _truncate(self, text: str) -> str:
        limit = self._MAX_TOOL_CONTENT_CHARS
        return text if len(text) <= limit else f"{text[:limit]}... [truncated {len(text) - limit} chars]"


def _plain(content: Any) -> JsonObject:
    """Convert a genai Content to JSON. JSON is returned unchanged."""
    dump = getattr(content, "model_dump", None)
    plain: JsonObject = dump(mode="json", by_alias=True, exclude_none=True) if dump else content or {}
    return plain


def _names_a_credential(part: JsonObject) -> bool:
    named = part.get("functionCall") or part.get("functionResponse") or {}
    return bool(named.get("name") == CREDENTIAL_REQUEST)

"""Repair the replies of models, so that what is recorded can be sent to a model again.

`waystation.models.reply_reasons` lists what is repaired, and what happens to the rest.
"""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

from waystation.activities.contexts import Contexts
from waystation.activities.model_call.annotate import UNUSABLE_ARGUMENTS, find_content_problem
from waystation.core.contract import UNUSABLE_REPLY, ModelReply, text_of
from waystation.core.errors import NotJson
from waystation.core.naming import with_article
from waystation.core.payload import JsonObject, normalize_json
from waystation.models import LlmResponse
from waystation.models.reply_reasons import find_remedy

_ASK_AGAIN = "Your last reply could not be used, and nothing in it was done: {message} Reply again."


def repair_response(response: LlmResponse) -> LlmResponse:
    """Return a model's response with repaired values.

    The arguments of each call become an object. If they cannot, the object has only the key `UNUSABLE_ARGUMENTS`.
    """
    content = response.content
    if not content or find_content_problem(content):
        return response
    parts = [repaired for part in content.get("parts") or () if (repaired := _repair_part(part))]
    with suppress(NotJson):
        return replace(response, content=normalize_json({**content, "parts": parts}))
    return response


def _repair_part(part: JsonObject) -> JsonObject:
    part = {key: value for key, value in part.items() if value is not None}
    if (args := (part.get("functionCall") or {}).get("args")) is not None:
        part["functionCall"] = {**part["functionCall"], "args": _repair_args({} if args in ("", "null", []) else args)}
    return part


def _repair_args(args: Any) -> JsonObject:
    value = args
    with suppress(ValueError, RecursionError):
        for _ in range(2):  # Some models write the object as text within JSON.
            value = json.loads(value, strict=False) if isinstance(value, str) else value
    with suppress(NotJson):
        if isinstance(value, dict):
            return dict(normalize_json(value))
    with suppress(TypeError, ValueError, RecursionError):
        return {UNUSABLE_ARGUMENTS: args if isinstance(args, str) else json.dumps(args)}
    return {UNUSABLE_ARGUMENTS: f"{with_article(args)} that is not JSON"}


def add_remedy(reply: ModelReply, contexts: Contexts, wrap_up: str | None) -> ModelReply:
    """Return a reply with its remedy, if it is unusable and the model may be asked again, so not if it has to wrap up.

    The thoughts of a reply without text are dropped, because the model is asked the same again.
    """
    if wrap_up or not reply.error_code:
        return reply
    remedy = find_remedy(reply.error_code, len(_find_unusable(contexts)))
    content = None if remedy == "retry" and not text_of(reply.content) else reply.content
    return reply.model_copy(update={"remedy": remedy, "content": content})


def explain_unusable(contexts: Contexts) -> list[JsonObject]:
    """Return a message to the model about the mistake in its last reply.

    Return nothing if the reply was usable, or if the model gets the same request again.
    """
    reported = [note for note in _find_unusable(contexts)[:1] if note["remedy"] == "report"]
    return [{"role": "user", "parts": [{"text": _ASK_AGAIN.format(**note)}]} for note in reported]


def _find_unusable(contexts: Contexts) -> list[JsonObject]:
    """Return the notes about the agent's unusable replies since its last usable one, newest first."""
    work, events = contexts.work, reversed(contexts.log.state.events[contexts.work.entered_at :])
    notes = (e.custom_metadata or {} for e in events if (e.author, e.branch) == (work.agent, work.branch))
    return [note[UNUSABLE_REPLY] for note in takewhile(lambda note: UNUSABLE_REPLY in note, notes)]

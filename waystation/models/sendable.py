"""Change a request so that its service accepts it, and restore the names of tools in the reply.

A service refuses a whole request for one odd name, ID or message, and then every later request of the session, too. A
request that is valid already stays as it is.
"""

import base64
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from waystation.core.payload import JsonObject, digest, encode, repair_text
from waystation.models.llm_request import joined
from waystation.models.llm_response import LlmResponse
from waystation.models.plain_request import LlmRequest

BEGIN_PROMPT = "The beginning of this conversation is not shown."
CONTINUE_PROMPT = "Continue as instructed. If there is nothing left to do, say so or summarize."
MAX_NAME = 64
THINKING = "thinking:"
"""Precedes signatures of Anthropic in `thoughtSignature`, so that they are not sent to another provider."""
_ENCODED_THINKING = base64.b64encode(THINKING.encode()).decode()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules of a service for requests."""

    name: re.Pattern[str] = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{MAX_NAME - 1}}}")
    """Matches the names of tools."""
    max_description: int | None = None
    """Maximum number of characters in a tool's description. A longer one becomes part of the instruction."""
    is_genai: bool = False
    """Whether the service receives genai's JSON, in which IDs are optional. Calls for other services are numbered,
    because the IDs of several services may repeat. Gemini rejects thoughts with the signatures of Anthropic."""
    calls_need_tools: bool = False
    """Whether a request whose conversation has calls must declare tools."""


class ToolNames:
    """Maps the names of tools to names that a service accepts. Different names stay different."""

    def __init__(self, names: Iterable[str], rules: Rules) -> None:
        """Map the names in a request."""
        wanted = set(names)
        self._originals = {name: name for name in wanted if rules.name.fullmatch(name)}
        for name in sorted(wanted - self._originals.keys()):
            readable = re.sub("[^A-Za-z0-9_-]", "_", name)
            readable = readable if rules.name.match(readable) else f"_{readable}"
            sent = readable[:MAX_NAME]
            while sent in self._originals:
                sent = f"{readable[: MAX_NAME - 9]}_{digest([name, sent])[:8]}"
            self._originals[sent] = name
        self.sent = {name: sent for sent, name in self._originals.items()}
        """The name that the service receives, by the name of the tool."""

    def restore(self, response: LlmResponse) -> LlmResponse:
        """Put the names of tools into the calls of a response, and return it."""
        for call in response.get_function_calls():
            if isinstance(name := call.get("name") or "", str):  # The engine reports other names to the model.
                call["name"] = self._originals.get(name, name)
        return response


def make_sendable(request: LlmRequest, rules: Rules) -> tuple[LlmRequest, ToolNames]:
    """Return a request that a service with these rules accepts, and the names in it."""
    whole = _repair_text([list(request.contents), list(request.tools), request.system_instruction or ""])
    turns, tools, instruction = _arrange_turns(whole[0], rules), list[JsonObject](whole[1]), str(whole[2])
    called = {call.get("name") or "" for turn in turns for call in _get_calls(turn)}
    names = ToolNames([*called, *(tool["name"] for tool in tools)], rules)
    instruction, config = instruction if instruction.strip() else "", request.config
    choice = (config.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if allowed := [name for tool in tools if (name := tool["name"]) in (choice.get("allowedFunctionNames") or ())]:
        choice = {**choice, "allowedFunctionNames": [names.sent[name] for name in allowed]}
        tools = tools if rules.is_genai else [tool for tool in tools if tool["name"] in allowed]
    if not tools:
        choice = {"mode": "NONE"} if rules.calls_need_tools and called else {}
        tools = [{"name": name, "description": "Not available."} for name in sorted(called) if choice]
    if "toolConfig" in config or choice:
        config = {**config, "toolConfig": {**(config.get("toolConfig") or {}), "functionCallingConfig": choice or None}}
    for number, tool in enumerate(tools):
        name, text = names.sent[tool["name"]], tool.get("description") or ""
        tools[number] = {**tool, "name": name}
        if rules.max_description and len(text) > rules.max_description:
            tools[number]["description"] = f"{text[: rules.max_description - 1]}…"
            instruction = joined(instruction, f"The whole description of the tool `{name}`:\n{text}")
    contents = list(_pair_results(turns, names, rules))
    return replace(
        request, contents=contents, tools=tools, system_instruction=instruction or None, config=config
    ), names


def _repair_text(value: list[Any]) -> list[Any]:
    """Return JSON with repaired text. Halves of surrogate pairs cannot be sent."""
    try:
        encode(value)
    except ValueError:
        return list(json.loads(repair_text(json.dumps(value, ensure_ascii=False))))
    return value


def _arrange_turns(contents: Sequence[JsonObject], rules: Rules) -> list[JsonObject]:
    """Return contents without empty messages, with one turn of the model at a time, and turns of the user around them.

    The model may have produced several contents in a row while an earlier call was pending. In a loop, the agent's
    content may come last. In that case, a prompt is added, as in ADK 2.13.
    """
    turns: list[JsonObject] = []
    for content in contents:
        role = "model" if content.get("role") in ("model", "assistant") else "user"
        parts = [part for part in content.get("parts") or () if not (_is_blank(part) or _is_foreign(part, rules))]
        if role == "user" and all(part.get("thought") for part in parts):
            continue  # Otherwise, the turns of the model around it would follow each other.
        if parts and turns and role == turns[-1]["role"] == "model":
            parts = [*turns.pop()["parts"], *parts]
        turns += [{"role": role, "parts": parts}] if parts else []
    turns = [turn for turn in turns if any("functionCall" in part or not part.get("thought") for part in turn["parts"])]
    # Gemini takes a summary of earlier turns as the first turn, but no call.
    if turns and turns[0]["role"] == "model" and (not rules.is_genai or _get_calls(turns[0])):
        turns.insert(0, {"role": "user", "parts": [{"text": BEGIN_PROMPT}]})
    if not turns or turns[-1]["role"] == "model":
        turns.append({"role": "user", "parts": [{"text": CONTINUE_PROMPT}]})
    return turns


def _is_blank(part: JsonObject) -> bool:
    return "text" in part and part.keys() <= {"text", "thought"} and not str(part["text"]).strip()


def _is_foreign(part: JsonObject, rules: Rules) -> bool:
    return rules.is_genai and str(part.get("thoughtSignature")).startswith(_ENCODED_THINKING)


def _get_calls(turn: JsonObject) -> list[JsonObject]:
    return [part["functionCall"] for part in turn["parts"] if part.get("functionCall")]


def _pair_results(turns: Sequence[JsonObject], names: ToolNames, rules: Rules) -> Iterator[JsonObject]:
    """Yield turns in which the results of calls directly follow them, one for each call and in the order of the calls.

    Callbacks may have removed calls or results from a conversation. A result without its call becomes text.
    """
    numbers, calls, sent = itertools.count(1), list[JsonObject](), list[JsonObject]()
    for role, group in itertools.groupby(turns, key=lambda turn: turn["role"]):
        if role == "user":
            yield from _answer(calls, sent, list(group))
            continue
        [turn] = group
        calls = _get_calls(turn)
        sent = [
            {**call, "name": names.sent[call.get("name") or ""]}
            | ({} if rules.is_genai else {"id": f"call_{next(numbers)}"})
            for call in calls
        ]
        left = iter(sent)
        parts = [{**part, "functionCall": next(left)} if part.get("functionCall") else part for part in turn["parts"]]
        yield {"role": role, "parts": parts}


def _answer(calls: Sequence[JsonObject], sent: Sequence[JsonObject], contents: list[JsonObject]) -> list[JsonObject]:
    """Return contents of the user. The first one begins with the results of the calls, which are sent as `sent`."""
    results: dict[int, JsonObject] = {}
    orphans: list[JsonObject] = []
    for part in [part for content in contents for part in content["parts"] if part.get("functionResponse")]:
        response = part["functionResponse"]
        open_calls = [(number, call) for number, call in enumerate(calls) if number not in results]
        by_id = [number for number, call in open_calls if call.get("id") and call["id"] == response.get("id")]
        by_name = [number for number, call in open_calls if call.get("name") == response.get("name")]
        if found := [*(number for number in by_id if number in by_name), *by_id, *by_name]:
            results[found[0]] = part
        else:
            text = f"An earlier call of {response.get('name')} returned: {encode(response.get('response')).decode()}"
            orphans += [{"text": text}, *(response.get("parts") or ())]
    answers = []
    for number, call in enumerate(sent):
        part = results.get(number) or {"functionResponse": {"response": {"error": "The result is not available."}}}
        keys = {key: call[key] for key in ("id", "name") if key in call}
        rest = {key: value for key, value in part["functionResponse"].items() if key != "id"}
        answers.append({**part, "functionResponse": {**rest, **keys}})
    others = [[part for part in content["parts"] if not part.get("functionResponse")] for content in contents]
    others[0] = [*answers, *orphans, *others[0]]
    return [{"role": "user", "parts": parts} for parts in others if parts]

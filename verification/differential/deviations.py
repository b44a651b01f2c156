"""Every way in which Waystation differs from google-adk on purpose, by name.

A deviation derives Waystation's record from ADK's by a change of the record, by a setup of ADK (`adapted`), or by both.
Everything that no deviation covers must be equal.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verification.differential.scenario import Json
from waystation.core.conversation import BEGIN_QUOTE
from waystation.core.conversation.prompt import PREAMBLE
from waystation.tools.base_tool import BaseTool, declare
from waystation.tools.exit_loop_tool import exit_loop
from waystation.tools.function_tool import FunctionTool
from waystation.tools.get_user_choice_tool import get_user_choice_tool as get_user_choice
from waystation.tools.load_artifacts_tool import _HINT as ARTIFACTS_HINT
from waystation.tools.load_artifacts_tool import load_artifacts_tool as load_artifacts
from waystation.tools.load_memory_tool import _HINT as MEMORY_HINT
from waystation.tools.load_memory_tool import load_memory_tool as load_memory
from waystation.tools.long_running_tool import NOTE
from waystation.tools.request_input_tool import request_input

Change = Callable[[Json, Any], Json]
"""Returns Waystation's record for ADK's record and the facts that the scenario states about this deviation."""


def nothing(whole: Json, _facts: Any) -> Json:
    """Change nothing, because ADK was set up to do the same."""
    return whole


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One difference, and where it is documented."""

    row: str
    """Text of a row of the table in docs/reference/adk.md."""
    change: Change = nothing
    adapts: bool = False
    """Whether ADK is set up for it, see `adapted`."""
    always: bool = False
    """Whether every scenario shows it."""


def without_labels(whole: Json, _facts: Any) -> Json:
    """Remove the label with which ADK marks its requests."""
    for request in each_request(whole):
        request["config"].pop("labels", None)
    return whole


def each_response(whole: Json) -> Iterator[Json]:
    """Yield every function response, in events and in requests."""
    contents = [event.get("content", {}) for event in whole["events"]]
    contents += [content for request in each_request(whole) for content in request["contents"]]
    for part in (part for content in contents for part in content.get("parts", [])):
        if "functionResponse" in part:
            yield part["functionResponse"]


def each_request(whole: Json) -> list[Json]:
    """Return all model requests of a record."""
    return [request for requests in whole["requests"].values() for request in requests]


def described(whole: Json, facts: Any) -> Json:
    """Add the descriptions from docstrings to the declared parameters; `facts` maps tool -> parameter -> text."""
    for declared in (tool for request in each_request(whole) for tool in request["tools"] if tool["name"] in facts):
        for name, text in facts[declared["name"]].items():
            declared["parametersJsonSchema"]["properties"][name]["description"] = text
    return whole


def noted(whole: Json, facts: Any) -> Json:
    """Replace ADK's note on long-running tools by Waystation's; `facts` maps tool -> docstring."""
    for declared in (tool for request in each_request(whole) for tool in request["tools"] if tool["name"] in facts):
        doc = facts[declared["name"]]
        assert declared["description"].startswith(doc), "ADK's note no longer follows the docstring."
        declared["description"] = f"{doc}\n\n{NOTE}" if doc else NOTE
    return whole


def without_placeholders(whole: Json, _facts: Any) -> Json:
    """Remove the error response that a gated call has until it is confirmed.

    The responses of other calls of the batch stay, after the request for confirmation.
    """
    events: list[Json] = []
    for event in whole["events"]:
        parts = event.get("content", {}).get("parts", [])
        kept = [part for part in parts if part.get("functionResponse", {}).get("response") != {"error": PLACEHOLDER}]
        if len(kept) == len(parts):
            events.append(event)
            # ADK records the request last if another call of the batch has already returned.
            if is_request(event) and len(events) > 1 and events[-2].get("was_merged"):
                events[-2:] = [events[-1], events[-2]]
        elif kept:
            actions = {key: value for key, value in event["actions"].items() if key not in GATING}
            event = {**event, "content": {**event["content"], "parts": kept}, "actions": actions, "was_merged": True}
            events.append({key: value for key, value in event.items() if value != {}})
    for event in events:
        event.pop("was_merged", None)
    for response in each_response({**whole, "events": []}):  # shown to a model that is called in between
        if response.get("response") == {"error": PLACEHOLDER}:
            response["response"] = {"status": "pending"}
    for request in each_request(whole):  # in the requests of other agents
        request["contents"] = [content for content in request["contents"] if PLACEHOLDER not in str(content)]
    whole["events"] = events
    return whole


def with_reply(whole: Json, facts: Any) -> Json:
    """Keep a model's text between two updates; `facts` has the text, and the indexes of its request and content."""
    reply = {"role": "model", "parts": [{"text": facts["text"]}]}
    whole["requests"]["main"][facts["request"]]["contents"].insert(facts["content"], reply)
    return whole


def failed_model(whole: Json, _facts: Any) -> Json:
    """Replace the type of the model's exception by `ModelFailed`."""
    next(event for event in whole["events"] if event.get("errorCode") == whole["raised"])["errorCode"] = "ModelFailed"
    return {**whole, "raised": "ModelFailed"}


def is_request(event: Json) -> bool:
    """Return whether an event requests the confirmation of calls."""
    parts = event.get("content", {}).get("parts", [])
    return any(part.get("functionCall", {}).get("name") == REQUEST for part in parts)


def split(whole: Json, _facts: Any) -> Json:
    """Split an event with several answers of a client into one event per answer."""
    events: list[Json] = []
    for event in whole["events"]:
        parts = event.get("content", {}).get("parts", [])
        if event["author"] == "user" and len(parts) > 1 and all("functionResponse" in part for part in parts):
            events.extend({**event, "content": {**event["content"], "parts": [part]}} for part in parts)
        else:
            events.append(event)
    whole["events"] = events
    return whole


def without_checkpoints(whole: Json, _facts: Any) -> Json:
    """Remove the checkpoints of resumable agents."""
    for event in whole["events"]:
        for name in ("endOfAgent", "agentState"):
            event.get("actions", {}).pop(name, None)
        if event.get("actions") == {}:
            del event["actions"]
    whole["events"] = [event for event in whole["events"] if event.keys() - {"author", "branch", "final"}]
    return whole


def responding(whole: Json, facts: Any) -> Json:
    """Replace the responses of tools; `facts` maps tool -> response."""
    for response in each_response(whole):
        if response["name"] in facts:
            response["response"] = facts[response["name"]]
    return whole


def without_bound(whole: Json, facts: Any) -> Json:
    """Remove the parameter `b`, which a partial binds; `facts` maps tool -> response."""
    for declared in (tool for request in each_request(whole) for tool in request["tools"]):
        declared["parametersJsonSchema"]["properties"].pop("b")
    return responding(whole, facts)


def without_empty_texts(whole: Json, _facts: Any) -> Json:
    """Remove parts with empty text."""
    for event in whole["events"]:
        for content in filter(None, [event.get("content")]):
            content["parts"] = [part for part in content["parts"] if part != {"text": ""}]
    return whole


def told_the_payload(whole: Json, facts: Any) -> Json:
    """Add the payload of a confirmation to the response of the confirmed call; `facts` is the payload."""
    for response in each_response(whole):
        if response["name"] in ("ask_first", "pay") and response["response"].get("status") != "waiting":
            response["response"] = {**response["response"], **facts}
    return whole


def with_silent_actions(whole: Json, facts: Any) -> Json:
    """Record the actions of a long-running call that returns nothing; `facts` are these actions."""
    asked = next(i for i, event in enumerate(whole["events"]) if event.get("longRunningToolIds"))
    author = whole["events"][asked]["author"]
    whole["events"].insert(asked + 1, {"author": author, "actions": facts, "final": True})
    whole["state"].update(facts.get("stateDelta", {}))
    return whole


def described_otherwise(whole: Json, facts: Any) -> Json:
    """Replace the descriptions and instructions of ready-made tools by Waystation's; `facts` lists the tools' names."""
    words = {tool.name: declare(tool) or {} for tool in map(as_tool, READY_MADE)}
    for request in each_request(whole):
        for declared in (tool for tool in request["tools"] if tool.get("name") in facts):
            ours = words[declared["name"]]
            declared["description"] = ours["description"]
            for name, schema in ours.get("parametersJsonSchema", {}).get("properties", {}).items():
                if "description" in schema:
                    declared["parametersJsonSchema"]["properties"][name]["description"] = schema["description"]
        use = _OF_MEMORY.sub(MEMORY_HINT, request["systemInstruction"])
        request["systemInstruction"] = _OF_ARTIFACTS.sub(lambda found: ARTIFACTS_HINT.format(names=found["names"]), use)
    return whole


def introduced(whole: Json, _facts: Any) -> Json:
    """Replace ADK's introduction of quotations from other agents by Waystation's."""
    for content in (content for request in each_request(whole) for content in request["contents"]):
        first = content["parts"][0].get("text", "")
        if first.startswith("For context:") and BEGIN_QUOTE in first:
            content["parts"][0]["text"] = PREAMBLE
    return whole


def with_json_schema(whole: Json, _facts: Any) -> Json:
    """Convert the output schema of each request to a JSON schema."""
    for request in each_request(whole):
        if "responseSchema" in request["config"]:
            request["config"]["responseJsonSchema"] = request["config"].pop("responseSchema")
    return whole


def recorded_failure(whole: Json, facts: Any) -> Json:
    """Add a response to the call that ends the invocation, and replace the exception's text by the name of the tool.

    `facts` has the `message` of the error event, and the `tool` with its `response`.
    """
    failed = whole["events"][-1]
    failed["errorMessage"] = facts["message"]
    asked = next(event for event in reversed(whole["events"]) if "longRunningToolIds" in event)
    call = next(
        part["functionCall"]
        for part in asked["content"]["parts"]
        if part.get("functionCall", {}).get("name") == facts["tool"]
    )
    part = {"functionResponse": {"id": call["id"], "name": call["name"], "response": facts["response"]}}
    if whole["events"][-2] is asked:
        content = {"role": "user", "parts": []}
        whole["events"].insert(-1, {"author": asked["author"], "content": content, "final": False})
    whole["events"][-2]["content"]["parts"].append(part)
    return whole


def stopped(whole: Json, _facts: Any) -> Json:
    """Replace the failure by a stop when the budget is used up."""
    assert whole["events"].pop()["errorCode"] == whole["raised"]
    return {**whole, "raised": None}


def told_instead(whole: Json, facts: Any) -> Json:
    """Continue after a call that ended ADK's run.

    `facts` has the `responses` that the model receives, by tool name, and the `reply` that its script has next.
    """
    asked, responded = whole["events"][-2:]
    for part in responded["content"]["parts"]:
        part["functionResponse"]["response"] = facts["responses"][part["functionResponse"]["name"]]
    responded.pop("actions", None)
    shown = json.loads(json.dumps([asked["content"], responded["content"]]))
    for part in (part for content in shown for part in content["parts"]):
        (part.get("functionCall") or part["functionResponse"]).pop("id")
    requests = next(each for each in whole["requests"].values() if each)
    last = json.loads(json.dumps(requests[-1]))
    requests.append({**last, "contents": [*last["contents"], *shown]})
    reply = {"role": "model", "parts": [{"text": facts["reply"]}]}
    whole["events"].append({"author": asked["author"], "content": reply, "final": True})
    return {**whole, "raised": None}


def without_nodes(whole: Json, _facts: Any) -> Json:
    """Remove the events of tools that run as separate nodes; these events have a branch and no content."""
    whole["events"] = [event for event in whole["events"] if "@" not in event.get("branch", "") or "content" in event]
    return whole


def remembered(whole: Json, facts: Any) -> Json:
    """Keep the hint and the payload of a tool's request; `facts` are those that the tool repeats in its response."""
    for response in each_response(whole):
        if response["name"] != REQUEST and "confirmed" in response["response"]:
            response["response"].update(facts)
    return whole


def said_by_the_agent(whole: Json, facts: Any) -> Json:
    """Make the agent named by `facts` the author of a plugin's reply to the whole invocation."""
    spoken = whole["events"][-1]
    assert spoken["author"] == "model"
    spoken["author"] = facts
    return whole


def in_call_order(whole: Json, facts: Any) -> Json:
    """Sort the responses to the calls of one reply in call order; `facts` lists the responses in this order."""
    for content in (content for request in each_request(whole) for content in request["contents"]):
        if all(part.get("functionResponse", {}).get("response") in facts for part in content["parts"]):
            content["parts"].sort(key=lambda part: facts.index(part["functionResponse"]["response"]))
    return whole


def with_temporary_state(whole: Json, facts: Any) -> Json:
    """Keep `temp:` state in events; `facts` maps the index of an event -> its `temp:` state."""
    for index, delta in facts.items():
        whole["events"][index].setdefault("actions", {}).setdefault("stateDelta", {}).update(delta)
    return whole


def shortened(whole: Json, facts: Any) -> Json:
    """Shorten the report on each invalid argument to one line; `facts` maps ADK's names of types -> Waystation's."""

    def short(text: str) -> str:
        for theirs, ours in facts.items():
            text = text.replace(f"expected type '{theirs}'", f"expected type '{ours}'")
        return _VALIDATION.sub(lambda found: "; ".join(_mistakes(found["mistakes"])) + "\n", text)

    for response in each_response(whole):
        if "error" in response["response"]:
            response["response"]["error"] = short(response["response"]["error"])
    return whole


def _mistakes(text: str) -> Iterator[str]:
    for found in _MISTAKE.finditer(text):
        yield f"{found['where']}: {found['what']}" if found["where"] else found["what"]


_VALIDATION = re.compile(r"\d+ validation errors? for .*\n(?P<mistakes>(?:.*\n)+?)(?=You could retry|Parameter ')")
_MISTAKE = re.compile(r"(?:^(?P<where>\S.*)\n)?^  (?P<what>.*) \[type=.*\]\n    For further .*$", re.MULTILINE)

READY_MADE = (exit_loop, get_user_choice, request_input, load_memory, load_artifacts)
_OF_MEMORY = re.compile(r"\nYou have memory\..*\Z", re.DOTALL)
_OF_ARTIFACTS = re.compile(r"You have a list of artifacts:\n  (?P<names>\[.*?\])\n.*\Z", re.DOTALL)


def as_tool(tool: Any) -> BaseTool:
    """Return a tool, wrapping a function like an agent does."""
    return tool if isinstance(tool, BaseTool) else FunctionTool(tool)


REQUEST = "adk_request_confirmation"
PLACEHOLDER = "This tool call requires confirmation, please approve or reject."
GATING = ("requestedToolConfirmations", "skipSummarization")


def with_task(whole: Json, facts: Any) -> Json:
    """Insert the user's message after a summary that covers it; `facts` is its text."""
    for request in each_request(whole):
        contents = request["contents"]
        if contents[0]["role"] == "model":
            contents.insert(1, {"role": "user", "parts": [{"text": facts}]})
    return whole


DEVIATIONS: Mapping[str, Deviation] = {
    "task-stays": Deviation(row="a summary can cover the message that is being answered", change=with_task),
    "requests-are-not-labelled": Deviation(
        row="requests have the label `adk_agent_name`", change=without_labels, always=True
    ),
    "tool-errors-are-told": Deviation(row="an exception in a tool ends the run", adapts=True),
    "arguments-are-validated": Deviation(row="arguments are barely validated", adapts=True),
    "short-validation-errors": Deviation(row="the opt-in validation quotes pydantic's report", change=shortened),
    "constraints-are-checked": Deviation(row="the opt-in validation quotes pydantic's report", change=responding),
    "function-responses-are-understood": Deviation(
        row="a returned `types.FunctionResponse` is dumped into `result`", change=responding
    ),
    "parameter-descriptions": Deviation(row="docstrings are not parsed for parameters", change=described),
    "no-placeholder": Deviation(
        row="a call that needs confirmation has an error response until it is confirmed", change=without_placeholders
    ),
    "long-running-note": Deviation(row="the description of a long-running tool ends with a note", change=noted),
    "silent-actions": Deviation(
        row="a long-running function that returns a falsy value loses its state changes", change=with_silent_actions
    ),
    "one-rule-for-batches": Deviation(
        row="if only some calls of a batch have answers, ADK may call the model",
        change=without_checkpoints,
        adapts=True,
    ),
    "each-answer-is-an-event": Deviation(
        row="the answers that a client sends in one message are one event", change=split
    ),
    "responses-in-call-order": Deviation(
        row="the model sees the function responses for one reply in the order they arrived", change=in_call_order
    ),
    "quotations-are-introduced-otherwise": Deviation(
        row="what other agents did is quoted between ADK's markers", change=introduced
    ),
    "output-as-json-schema": Deviation(
        row="an output schema is sent as a class in `response_schema`", change=with_json_schema
    ),
    "failures-are-recorded": Deviation(row="an error event repeats the exception message", change=recorded_failure),
    "budget-stops": Deviation(row="exceeding `max_llm_calls` makes the run fail", change=stopped),
    "transfers-to-nobody-are-told": Deviation(
        row="a transfer to an agent that is not a valid transfer target ends the run", change=told_instead
    ),
    "ready-made-words": Deviation(row="ready-made tools have ADK's descriptions", change=described_otherwise),
    "generators-are-no-nodes": Deviation(
        row="a generator runs as a separate node whose output is an event", change=without_nodes
    ),
    "the-agent-is-the-author": Deviation(
        row="the content that a plugin's `before_run` returns has the author `model`", change=said_by_the_agent
    ),
    "answers-keep-what-was-asked": Deviation(
        row="a confirmation without a hint or a payload reaches the tool without them", change=remembered
    ),
    "bound-arguments-are-hidden": Deviation(
        row="the model sees and can replace what a `functools.partial` binds by keyword", change=without_bound
    ),
    "empty-texts-are-left-out": Deviation(
        row="an empty reply, or one that ends with `MALFORMED_FUNCTION_CALL`", change=without_empty_texts
    ),
    "payloads-are-told": Deviation(row="only the tool receives the payload of a confirmation", change=told_the_payload),
    "replies-between-updates-stay": Deviation(
        row="model output between two updates of a call is dropped from later requests", change=with_reply
    ),
    "failures-of-models-are-named": Deviation(
        row="an exception in a model ends the run with that exception's type", change=failed_model
    ),
    "scopes-are-read-once": Deviation(
        row="`user:` and `app:` state is read again with each answer to a pending call", change=responding
    ),
    "temporary-state-in-events": Deviation(row="`temp:` state is removed from events", change=with_temporary_state),
}

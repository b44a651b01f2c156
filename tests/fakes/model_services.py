"""Fakes of OpenAI's chat completions and Anthropic's messages, scripted like `FakeGemini`, over real HTTP.

Like the real services, they reject a whole request for one name, message, ID or schema that they do not accept.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from waystation.core.payload import JsonObject
from waystation.testing.scripted_server import ScriptedServer

SIGNATURE = "signature-of-the-service"


@dataclass(frozen=True)
class Request:
    """A request that the server received."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A scripted answer: a whole body and the same as events of a stream, or an error."""

    whole: JsonObject
    events: Sequence[JsonObject] = ()
    status: int = 200
    retry_after: float | None = None
    drop: bool = False


class FakeService(ScriptedServer):
    """A server that answers each request with the next scripted answer."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self._script: deque[Answer] = deque()

    def fault(
        self, *, status: int = 503, message: str = "A fault.", retry_after: float | None = None, drop: bool = False
    ) -> None:
        """Script an error, or with `drop` a connection that closes in the middle of a reply."""
        if drop:
            self.reply(text="Half of it, and more")
            self._script.append(Answer(**{**vars(self._script.pop()), "drop": True}))
            return
        error = {"type": "error", "error": {"message": message, "type": "api_error"}}
        self._script.append(Answer(whole=error, status=status, retry_after=retry_after))

    def report(self, error: JsonObject) -> None:
        """Script a reply with the status 200 that consists of an error, or a stream that has it after half a reply."""
        self.reply(text="Half of it, and more")
        half = self._script.pop().events[:2]
        whole = {"type": "error", "error": error}
        self._script.append(Answer(whole=whole, events=[*half, whole]))

    def end_early(self, events: int) -> None:
        """Leave out the last events of the reply that was scripted last."""
        answer = self._script.pop()
        self._script.append(Answer(whole=answer.whole, events=answer.events[:-events]))

    def reply(
        self,
        *,
        text: str | None = None,
        calls: Sequence[tuple[str, Any]] = (),
        thought: str | None = None,
        finish_reason: str = "STOP",
    ) -> None:
        """Script a reply. Arguments of a call that are a string are sent as they are."""
        raise NotImplementedError

    def find_problems(self, body: JsonObject) -> Iterator[str]:
        """Yield why the service rejects a request."""
        raise NotImplementedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length") or 0)))
        self.requests.append(Request(start.split(" ")[1], headers, body))
        if problem := next(self.find_problems(body), None):
            answer = Answer(whole={"error": {"message": problem, "type": "invalid_request_error"}}, status=400)
        else:
            answer = self._script.popleft()
        if body.get("stream") and answer.events:
            events = answer.events[: len(answer.events) // 2] if answer.drop else answer.events
            data = b"".join(self.encode(event) for event in events)
        else:
            data = json.dumps(answer.whole).encode()
        streamed = bool(body.get("stream") and answer.events)
        fields = [f"HTTP/1.1 {answer.status} X", f"Content-Length: {len(data) + answer.drop}"]
        fields.append(f"Content-Type: {'text/event-stream' if streamed else 'application/json'}")
        fields += [f"Retry-After: {answer.retry_after}"] if answer.retry_after else []
        writer.write("\r\n".join([*fields, "", ""]).encode() + data)
        await writer.drain()
        return not answer.drop

    def encode(self, event: JsonObject) -> bytes:
        """Return an event of a stream."""
        name = f"event: {event['type']}\n" if "type" in event else ""
        return f"{name}data: {json.dumps(event)}\n\n".encode()


NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
COMBINATIONS = {"oneOf", "anyOf", "allOf", "enum", "not"}


def find_tool_problems(names: Sequence[str], schemas: Sequence[JsonObject], chosen: str | None) -> Iterator[str]:
    """Yield what is wrong with the names and the schemas of tools, and with the name of the one to call."""
    yield from (f"tools: {name!r} does not match {NAME.pattern}" for name in names if not NAME.fullmatch(name))
    if len(set(names)) < len(names):
        yield f"tools: names must be unique: {names}"
    if chosen and chosen not in names:
        yield f"tool_choice: {chosen!r} is not one of the tools"
    for schema in schemas:
        if schema.get("type") != "object" or schema.keys() & COMBINATIONS:
            yield "tools: a schema must have the type 'object' and no oneOf, anyOf, allOf, enum or not at the top"


def is_blank(text: object) -> bool:
    """Return whether a value is not a text with more than white space."""
    return not (isinstance(text, str) and text.strip())


def halves(text: str) -> Iterator[str]:
    """Yield a text in two pieces."""
    middle = len(text) // 2
    yield from (piece for piece in (text[:middle], text[middle:]) if piece)


def arguments(args: Any) -> str:
    """Return the arguments of a call as JSON, or unchanged if they are a string."""
    return args if isinstance(args, str) else json.dumps(args)


class FakeOpenAI(FakeService):
    """OpenAI's chat completions."""

    def reply(
        self,
        *,
        text: str | None = None,
        calls: Sequence[tuple[str, Any]] = (),
        thought: str | None = None,
        finish_reason: str = "STOP",
    ) -> None:
        """Script a reply. With SAFETY, the text is a refusal."""
        finish = {"STOP": "tool_calls" if calls else "stop", "MAX_TOKENS": "length", "SAFETY": "stop"}[finish_reason]
        field = "refusal" if finish_reason == "SAFETY" else "content"
        made = [
            {"id": f"id-{n}", "type": "function", "function": {"name": name, "arguments": arguments(args)}}
            for n, (name, args) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": None, field: text, "tool_calls": made or None}
        message |= {"reasoning_content": thought} if thought else {}
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in halves(thought or "")]
        deltas += [{field: piece} for piece in halves(text or "")]
        for index, call in enumerate(made):
            first, *rest = halves(str(call["function"]["arguments"]))  # type: ignore[index]
            function = {"name": call["function"]["name"], "arguments": first}  # type: ignore[index]
            deltas.append({"tool_calls": [{"index": index, **call, "function": function}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest]
        head = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-openai"}
        events = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        events.append({**head, "choices": [], "usage": usage})
        choice = {"index": 0, "message": message, "finish_reason": finish}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        self._script.append(Answer(whole=whole, events=events))

    def find_problems(self, body: JsonObject) -> Iterator[str]:
        """Check the messages, the calls in them, and the tools."""
        expected: list[str] = []
        for message in [*body["messages"], {"role": "user", "content": "the end"}]:
            role, content, calls = message["role"], message.get("content"), message.get("tool_calls")
            if role == "tool" and message["tool_call_id"] not in expected:
                yield f"messages with role 'tool' must follow a call: {message['tool_call_id']}"
            if role != "tool" and expected:
                yield f"tool_call_ids did not have response messages: {expected}"
            texts = [part["text"] for part in content if "text" in part] if isinstance(content, list) else [content]
            if (content == [] or any(map(is_blank, texts))) and not (calls and content is None):
                yield f"the content of a message with role {role!r} must not be empty"
            if calls == [] or role not in ("system", "user", "assistant", "tool"):
                yield f"a message with role {role!r} is invalid"
            for call in calls or ():
                function = call["function"]
                if not (NAME.fullmatch(function["name"]) and isinstance(json.loads(function["arguments"]), dict)):
                    yield f"tool_calls: the function {function} is invalid"
            expected = [id for id in expected if id != message.get("tool_call_id")] + [c["id"] for c in calls or ()]
            if any(len(id) > 40 for id in expected) or len(set(expected)) < len(expected):
                yield f"tool_calls: the IDs {expected} are too long, or not unique"
        if not body["messages"] or body.get("tools") == [] or (body.get("tool_choice") and not body.get("tools")):
            yield "messages and tools must not be empty"
        tools = [tool["function"] for tool in body.get("tools") or ()]
        if any(len(tool["description"]) > 1024 for tool in tools):
            yield "tools: a description is longer than 1024 characters"
        choice = body.get("tool_choice")
        chosen = choice["function"]["name"] if isinstance(choice, dict) else None
        yield from find_tool_problems([t["name"] for t in tools], [t["parameters"] for t in tools], chosen)
        if not NAME.fullmatch((body.get("response_format") or {}).get("json_schema", {}).get("name", "none")):
            yield "response_format: the name of the schema is invalid"


class FakeAnthropic(FakeService):
    """Anthropic's messages."""

    def reply(
        self,
        *,
        text: str | None = None,
        calls: Sequence[tuple[str, Any]] = (),
        thought: str | None = None,
        finish_reason: str = "STOP",
    ) -> None:
        """Script a reply."""
        finish = {"STOP": "tool_use" if calls else "end_turn", "MAX_TOKENS": "max_tokens", "SAFETY": "refusal"}
        blocks: list[JsonObject] = []
        deltas: list[list[JsonObject]] = []
        if thought:
            blocks.append({"type": "thinking", "thinking": thought, "signature": SIGNATURE})
            pieces: list[JsonObject] = [{"type": "thinking_delta", "thinking": piece} for piece in halves(thought)]
            deltas.append([*pieces, {"type": "signature_delta", "signature": SIGNATURE}])
        if text:
            blocks.append({"type": "text", "text": text})
            deltas.append([{"type": "text_delta", "text": piece} for piece in halves(text)])
        for number, (name, args) in enumerate(calls):
            data = args if isinstance(args, dict) else {}
            blocks.append({"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": data})
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in halves(arguments(args))]
            deltas.append(pieces)
        usage = {"input_tokens": 6, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}
        usage |= {"output_tokens": 5}
        details = {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 2}}
        head = {"id": "msg-1", "type": "message", "role": "assistant", "model": "fake-anthropic", "stop_sequence": None}
        opening: JsonObject = {**head, "content": [], "stop_reason": None, "usage": usage}
        events: list[JsonObject] = [{"type": "message_start", "message": opening}]
        empty = {"text": "", "thinking": "", "signature": "", "input": {}}
        for index, block in enumerate(blocks):
            start = {key: empty.get(key, value) for key, value in block.items()}
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas[index]]
            events.append({"type": "content_block_stop", "index": index})
        end = {"stop_reason": finish[finish_reason], "stop_sequence": None}
        events += [{"type": "message_delta", "delta": end, "usage": details}, {"type": "message_stop"}]
        whole = {**head, "content": blocks, "stop_reason": finish[finish_reason], "usage": {**usage, **details}}
        self._script.append(Answer(whole=whole, events=events))

    def find_problems(self, body: JsonObject) -> Iterator[str]:
        """Check the roles, the blocks, the calls and their results, and the tools."""
        expected: list[str] = []
        tools, messages, has_calls = body.get("tools") or [], body["messages"], False
        for number, message in enumerate(messages):
            if message["role"] != ("user", "assistant")[number % 2]:
                yield "roles must alternate between user and assistant"
            text = {"type": "text", "text": message["content"]}
            blocks = message["content"] if isinstance(message["content"], list) else [text]
            results = [block["tool_use_id"] for block in blocks[: len(expected)] if block["type"] == "tool_result"]
            if sorted(results) != sorted(expected):
                yield f"tool_use ids were found without tool_result blocks immediately after: {expected}"
            if sum(block["type"] == "tool_result" for block in blocks) > len(results):
                yield "unexpected tool_use_id found in tool_result blocks"
            if not blocks or any(block["type"] == "text" and is_blank(block["text"]) for block in blocks):
                yield "text content blocks must contain non-whitespace text"
            if message["role"] == "assistant" and blocks[-1:] and "thinking" in blocks[-1]["type"]:
                yield "The final block in an assistant message cannot be `thinking`"
            calls = [block for block in blocks if block["type"] == "tool_use"]
            for call in calls:
                if not (
                    NAME.fullmatch(call["name"]) and NAME.fullmatch(call["id"]) and isinstance(call["input"], dict)
                ):
                    yield f"tool_use: {call} is invalid"
            expected, has_calls = [call["id"] for call in calls], has_calls or bool(calls)
        if not messages or messages[-1]["role"] != "user" or not body.get("max_tokens"):
            yield "messages: at least one message is required, and the last one must be the user's"
        if not tools and (has_calls or body.get("tool_choice")):
            yield "Requests which include `tool_use` or `tool_result` blocks must define tools"
        system = body.get("system", "none")
        if any(is_blank(block["text"]) for block in system) if isinstance(system, list) else is_blank(system):
            yield "system: text content blocks must contain non-whitespace text"
        choice = (body.get("tool_choice") or {}).get("name")
        yield from find_tool_problems([t["name"] for t in tools], [t["input_schema"] for t in tools], choice)

"""Fakes of OpenAI's chat completions and Anthropic's messages, scripted like `FakeGemini`, over real HTTP.

Like the real services, they reject conversations in which a call has no result, or a result no call.
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from waystation.core import JsonObject
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

    def find_problem(self, body: JsonObject) -> str | None:
        """Return why the service rejects a request, or None."""
        raise NotImplementedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length") or 0)))
        self.requests.append(Request(start.split(" ")[1], headers, body))
        if problem := self.find_problem(body):
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

    def find_problem(self, body: JsonObject) -> str | None:
        """Check that the results of calls directly follow them."""
        expected: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                if message["tool_call_id"] not in expected:
                    return f"messages with role 'tool' must follow a call: {message['tool_call_id']}"
                expected.remove(message["tool_call_id"])
            elif expected:
                return f"tool_call_ids did not have response messages: {expected}"
            expected += [call["id"] for call in message.get("tool_calls") or ()]
        return None


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
        begun: JsonObject = {**head, "content": [], "stop_reason": None, "usage": usage}
        events: list[JsonObject] = [{"type": "message_start", "message": begun}]
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

    def find_problem(self, body: JsonObject) -> str | None:
        """Check the roles, and that each message begins with the results of the calls before it."""
        expected: list[str] = []
        for number, message in enumerate(body["messages"]):
            if message["role"] != ("user", "assistant")[number % 2]:
                return "roles must alternate between user and assistant"
            blocks = message["content"] if isinstance(message["content"], list) else []
            results = [block["tool_use_id"] for block in blocks[: len(expected)] if block["type"] == "tool_result"]
            if sorted(results) != sorted(expected):
                return f"tool_use ids were found without tool_result blocks immediately after: {expected}"
            expected = [block["id"] for block in blocks if block["type"] == "tool_use"]
        return "max_tokens: Field required" if not body.get("max_tokens") else None

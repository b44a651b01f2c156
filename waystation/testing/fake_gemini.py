"""A fake Gemini server for tests, which serves scripted responses over HTTP on a loopback port.

    async with FakeGemini() as gemini:
        gemini.reply(calls=[("get_weather", {"city": "Bern"})])
        gemini.fault(status=429, retry_after=2)
        gemini.reply(text="It rains.")
        model = Gemini(base_url=gemini.url, api_key="test")
        ...
        assert gemini.requests[0].body["systemInstruction"]

Each valid request, streaming or not, receives the next response. A request that the real service would reject does not
use up a response. It is rejected with Google's error body, so that a wrong prompt fails the test. If no response is
left, the error says so.

The server supports the paths of the Gemini API and of Vertex AI. To use it in another process, set google-genai's
environment variable `GOOGLE_GEMINI_BASE_URL`.
"""

import asyncio
import json
import re
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from waystation.core.payload import JsonObject
from waystation.testing.scripted_server import ScriptedServer

MAX_DELAY_S = 60.0
SECRET_HEADERS = frozenset({"x-goog-api-key", "authorization"})

_PATH = re.compile(
    r"/v\w+(?:/projects/[^/]+/locations/[^/]+)?(?:/publishers/[^/]+)?/(?:models|tunedModels|endpoints)"
    r"/(?P<model>[^/:]+):(?P<method>generateContent|streamGenerateContent)"
)
_STATUS_NAMES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_STATUS_NAMES |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}
_FIELDS = re.compile(
    "contents|systemInstruction|tools|toolConfig|safetySettings|generationConfig|cachedContent|labels|"
    "serviceTier|store|continuationToken|model"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_BAD_NAME = (
    "Invalid function name. Must start with a letter or an underscore. Must be alphanumeric (a-z, A-Z, 0-9), "
    "underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 128."
)
_UNEQUAL = (
    "Please ensure that the number of function response parts is equal to the number of function call parts "
    "of the function call turn."
)
_ENSURE = "Please ensure that function "
_UNREQUESTED = _ENSURE + "response turn comes immediately after a function call turn."
_MISPLACED = _ENSURE + "call turn comes immediately after a user turn or after a function response turn."


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """A request that the server received."""

    path: str
    """The path of the request, without the query string."""
    model: str
    streamed: bool
    headers: Mapping[str, str]
    """The headers, with lowercase names and without the API key and the access token."""
    body: JsonObject = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class _GeminiAnswer:
    """The response to one request: a body, or a series of events if it is streamed."""

    whole: bytes = b""
    events: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drop: bool = False
    hold: asyncio.Event | None = None


class FakeGemini(ScriptedServer):
    """A fake Gemini server. Call `reply` and `fault` to script its responses, in request order."""

    def __init__(self, *, checks_turns: bool = True) -> None:
        """Create a server, which starts when the `async with` block is entered.

        Set `checks_turns` to False to accept prompts whose turns are in an order that the real service may reject.
        """
        self.requests: list[RecordedRequest] = []
        """All requests to known paths with valid JSON, including rejected requests."""
        super().__init__()
        self._checks_turns = checks_turns
        self._script: deque[_GeminiAnswer] = deque()

    @property
    def remaining(self) -> int:
        """The number of scripted responses that have not been used yet."""
        return len(self._script)

    def reply(
        self,
        *,
        text: str | None = None,
        calls: Sequence[tuple[str, JsonObject]] = (),
        id: str | Sequence[str] | None = None,
        thought: str | None = None,
        thought_signature: str | None = None,
        finish_reason: str = "STOP",
        usage: JsonObject | None = None,
        raw: JsonObject | Sequence[JsonObject] | None = None,
        hold: asyncio.Event | None = None,
    ) -> None:
        """Script a reply of the model.

        Args:
            text: The model's text. A streaming request receives it in several pieces.
            calls: Function calls as pairs of name and arguments, all made in one turn.
            id: The IDs of the calls. A single ID is for the first call. By default, calls have no IDs.
            thought: A thought summary, sent before the other parts.
            thought_signature: A signature in base64. It is attached to the first call, or to the text if there are no
                calls. If the text is streamed, it is attached to a final empty part, as in the real service.
            finish_reason: For example `MAX_TOKENS` or `SAFETY`.
            usage: The `usageMetadata`. By default, 10 input tokens and 5 output tokens.
            raw: A complete `GenerateContentResponse`, or a list of them for a streaming request. A request without
                streaming receives the first. If set, all other arguments except `hold` are ignored.
            hold: An event. In a streamed response, all pieces after the first wait until it is set.
        """
        if raw is not None:
            chunks = [raw] if isinstance(raw, Mapping) else list(raw)
            self._script.append(
                _GeminiAnswer(
                    whole=_encode_json(chunks[0]), events=[_encode_json(chunk) for chunk in chunks], hold=hold
                )
            )
            return
        counts = usage or {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        signed = {"thoughtSignature": thought_signature} if thought_signature else {}
        ids = [id] if isinstance(id, str) else list(id or ())
        turn: list[JsonObject] = []
        for number, (name, args) in enumerate(calls):
            call = {"name": name, "args": args, **({"id": ids[number]} if number < len(ids) else {})}
            turn.append({"functionCall": call, **(signed if number == 0 else {})})
        text_signed = {} if calls else signed
        thoughts: list[JsonObject] = [{"text": thought, "thought": True}] if thought else []
        texts: list[JsonObject] = [{"text": text, **text_signed}] if text is not None else []
        pieces = [*thoughts, *({"text": piece} for piece in _split_text(text or ""))]
        chunks = [_make_response([piece]) for piece in pieces] + [_make_response(turn)] * bool(turn)
        chunks.append(_make_response([{"text": "", **text_signed}], finish_reason, counts))
        whole = _make_response([*thoughts, *texts, *turn], finish_reason, counts)
        self._script.append(
            _GeminiAnswer(whole=_encode_json(whole), events=[_encode_json(chunk) for chunk in chunks], hold=hold)
        )

    def fault(
        self,
        *,
        status: int = 503,
        message: str = "A scripted fault.",
        retry_after: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        body: JsonObject | str | None = None,
        drop: bool = False,
        delay_s: float = 0.0,
        malformed: bool = False,
        text: str = "Half of",
        hold: asyncio.Event | None = None,
    ) -> None:
        """Script an error, or a response that is delayed or damaged.

        Args:
            status: The HTTP status code.
            message: The message in Google's error body.
            retry_after: The value of the `Retry-After` header: seconds, or an HTTP date.
            headers: Additional headers.
            body: A body that replaces Google's error body. Text is sent unchanged.
            drop: If True, respond with 200 and close the connection in the middle of the body. All arguments above are
                then ignored.
            delay_s: The delay before the response, at most 60 seconds. Use it to test timeouts.
            malformed: If True, respond with 200 and a body that is not JSON. `status` to `body` are then ignored.
            text: With `drop`, the model's text that is sent before the connection closes.
            hold: An event. With `drop` and streaming, the connection stays open until it is set.
        """
        if not 0 <= delay_s <= MAX_DELAY_S:
            raise ValueError(f"delay_s is {delay_s}. Use a value from 0 to {MAX_DELAY_S:.0f} seconds.")
        if drop or malformed:
            data = _encode_json(_make_response([{"text": text}])) if drop else b'{"candidates": ['
            self._script.append(_GeminiAnswer(whole=data, events=[data], drop=drop, delay_s=delay_s, hold=hold))
            return
        data = body.encode() if isinstance(body, str) else _encode_json(body or {})
        data = data if body is not None else _refuse(status, message).whole
        fields = dict(headers or {}) | ({} if retry_after is None else {"Retry-After": str(retry_after)})
        self._script.append(_GeminiAnswer(whole=data, status=status, headers=fields, delay_s=delay_s))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Respond to one request. Return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length") or 0))
        path = urllib.parse.urlsplit(start.split(" ")[1]).path
        match = _PATH.fullmatch(urllib.parse.unquote(path))
        if match is None:
            return await _send(writer, _refuse(404, f"FakeGemini does not serve {path}."), streamed=False)
        streamed = match["method"] == "streamGenerateContent"
        answer = self._take_answer(match, headers, data, streamed=streamed)
        await asyncio.sleep(answer.delay_s)
        return await _send(writer, answer, streamed=streamed)

    def _take_answer(
        self, match: re.Match[str], headers: Mapping[str, str], data: bytes, *, streamed: bool
    ) -> _GeminiAnswer:
        try:
            body: JsonObject = json.loads(data)
        except ValueError:
            return _refuse(400, "Invalid JSON payload received.")
        public = {name: value for name, value in headers.items() if name not in SECRET_HEADERS}
        self.requests.append(
            RecordedRequest(path=match[0], model=match["model"], streamed=streamed, headers=public, body=body)
        )
        if not headers.keys() & SECRET_HEADERS:
            return _refuse(403, "Method doesn't allow unregistered callers. Please use API Key.")
        if problem := next(_find_problems(body, checks_turns=self._checks_turns), None):
            return _refuse(400, problem)
        if not self._script:
            return _refuse(400, f"FakeGemini's script is exhausted at request {len(self.requests)}; add a reply.")
        return self._script.popleft()


def _make_response(parts: list[JsonObject], finish: str = "", counts: JsonObject | None = None) -> JsonObject:
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, **({"finishReason": finish} if finish else {})}],
        "usageMetadata": counts or {"promptTokenCount": 10, "candidatesTokenCount": 1, "totalTokenCount": 11},
        "modelVersion": "fake-gemini",
    }


def _encode_json(value: JsonObject) -> bytes:
    return json.dumps(value).encode()


def _split_text(text: str) -> list[str]:
    words = re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text)
    size = max(1, len(words) // 8)
    return ["".join(words[start : start + size]) for start in range(0, len(words), size)]


def _refuse(status: int, message: str) -> _GeminiAnswer:
    content = {"error": {"code": status, "message": message, "status": _STATUS_NAMES.get(status, "UNKNOWN")}}
    return _GeminiAnswer(whole=_encode_json(content), status=status)


async def _send(writer: asyncio.StreamWriter, answer: _GeminiAnswer, *, streamed: bool) -> bool:
    """Send the response. Return whether the connection stays open."""
    chunked = streamed and bool(answer.events)
    headers = {"Content-Type": "text/event-stream" if chunked else "application/json; charset=UTF-8"}
    headers |= {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(answer.whole))}
    lines = [f"{name}: {value}" for name, value in {**headers, **answer.headers}.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {answer.status} ", *lines, "", ""]).encode("latin-1"))
    if not chunked:
        writer.write(answer.whole[: len(answer.whole) // 2] if answer.drop else answer.whole)
    for event in answer.events if chunked else ():
        data = b"data: " + event + b"\r\n\r\n"
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
        if answer.hold is not None:
            await answer.hold.wait()
    if chunked and not answer.drop:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not answer.drop


def _find_problems(body: JsonObject, *, checks_turns: bool) -> Iterator[str]:
    """Yield the errors that the real service reports for a request, with the same wording."""
    for name in body:
        if not _FIELDS.fullmatch(name):
            yield f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
    contents = body.get("contents") or []
    if not contents:
        yield "* GenerateContentRequest.contents: contents is not specified"
    for place, content in enumerate(contents):
        yield from _find_content_problems(content, f"contents[{place}]")
    if checks_turns:
        yield from _find_turn_problems(contents)
    names: set[str] = set()
    tools = body.get("tools") or ()
    if (body.get("toolConfig") or {}).get("functionCallingConfig") and not any(
        "functionDeclarations" in t for t in tools
    ):
        yield "Function calling config is set without function_declarations."
    for function in (function for tool in tools for function in tool.get("functionDeclarations") or ()):
        name = str(function.get("name"))
        if not _FUNCTION_NAME.fullmatch(name):
            yield _BAD_NAME
        if name in names:
            yield f"Duplicate function declaration found: {name}"
        if "parameters" in function and "parametersJsonSchema" in function:
            yield f"Function {name}: only one of parameters and parametersJsonSchema may be set."
        names.add(name)


def _find_content_problems(content: JsonObject, place_name: str) -> Iterator[str]:
    for name in content.keys() - {"role", "parts"}:
        yield f"Invalid JSON payload received. Unknown name \"{name}\" at '{place_name}': Cannot find field."
    if content.get("role") not in ("user", "model", "function", None):
        yield "Please use a valid role: user, model."
    if not content.get("parts"):
        yield f"* GenerateContentRequest.{place_name}.parts: contents.parts must not be empty."
    for number, part in enumerate(content.get("parts") or ()):
        place = f"{place_name}.parts[{number}]"
        if part.get("text") == "" and len(part) == 1:
            yield "Unable to submit request because it has an empty text parameter."
        for kind, value in (("functionCall", "args"), ("functionResponse", "response")):
            item = part.get(kind)
            if item is not None and not (item.get("name") and isinstance(item.get(value, {}), dict)):
                yield f"Invalid value at '{place}.{kind}': it needs a name, and {value} must be an object."
        if not _BASE64.fullmatch(part.get("thoughtSignature") or ""):
            yield f"Invalid value at '{place}.thought_signature' (TYPE_BYTES), Base64 decoding failed"


def _find_turn_problems(contents: Sequence[JsonObject]) -> Iterator[str]:
    """Yield the errors in the order of turns. A turn with calls must follow a user turn or responses, and the next turn
    must contain one response to each call.
    """
    unanswered: list[JsonObject] = []
    previous: str | None = None
    for content in contents:
        parts = content.get("parts") or ()
        calls = [part["functionCall"] for part in parts if part.get("functionCall")]
        responses = [part["functionResponse"] for part in parts if part.get("functionResponse")]
        if len(responses) != len(unanswered):
            yield _UNEQUAL if unanswered else _UNREQUESTED
        # This check is stricter than the real service, which does not compare IDs.
        ids = {call["id"] for call in unanswered if call.get("id")}
        for response in responses:
            if ids and response.get("id") and response["id"] not in ids:
                yield f"The function response {response['id']!r} does not belong to a call in the previous turn."
        if calls and (content.get("role") != "model" or previous in (None, "model")):
            yield _MISPLACED
        unanswered, previous = calls, content.get("role") or "user"
    if unanswered:
        yield _UNEQUAL

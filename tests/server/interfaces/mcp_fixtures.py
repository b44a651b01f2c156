"""The parts of a test server that the conformance suite expects and agents lack: content, prompts and resources."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListRootsRequest,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    Tool,
)

from waystation.core.payload import JsonObject

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SOUND = base64.b64encode(b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0").decode()
IMAGE = ImageContent(data=PIXEL, mime_type="image/png")
KEY = b"the key of the test server"
CACHED: dict[str, Any] = {"ttl_ms": 1_000, "cache_scope": "private"}
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
"""The prompts, each with its arguments."""


def say(text: str) -> TextContent:
    """Return text as content."""
    return TextContent(text=text)


def embed(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    """Return a resource as content."""
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


CONTENTS: Mapping[str, list[Any]] = {
    "test_simple_text": [say("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [AudioContent(data=SOUND, mime_type="audio/wav")],
    "test_embedded_resource": [embed("test://embedded-resource", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        say("Multiple content types test:"),
        IMAGE,
        embed("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
    "test_logging_tool": [say("Nothing was logged.")],
}
"""The tools with fixed content."""


def form(message: str, field: str, kind: str = "string") -> ElicitRequest:
    """Return a form with one field."""
    schema: JsonObject = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str, tokens: int) -> CreateMessageRequest:
    """Return a request for a reply of the client's model."""
    message = SamplingMessage(role="user", content=say(text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=tokens))


NAME = form("What is your name?", "name")
ASKING: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "test_input_required_result_elicitation": ({"user_name": NAME},),
    "test_streaming_elicitation": ({"user_name": NAME},),
    "test_input_required_result_sampling": ({"capital_question": sampling("What is the capital of France?", 100)},),
    "test_input_required_result_list_roots": ({"client_roots": ListRootsRequest()},),
    "test_input_required_result_request_state": ({"confirm": form("Please confirm", "ok", "boolean")},),
    "test_input_required_result_tampered_state": ({"confirm": form("Please confirm", "ok", "boolean")},),
    "test_input_required_result_multiple_inputs": (
        {"user_name": NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ListRootsRequest()},
    ),
    "test_input_required_result_multi_round": (
        {"step1": form("Step 1: What is your name?", "name")},
        {"step2": form("Step 2: What is your favorite color?", "color")},
    ),
    "test_input_required_result_capabilities": (
        {"user_name": NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ListRootsRequest()},
    ),
}
"""The tools that ask, each with the requests of its rounds."""
CAPABILITIES = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
OTHERS = ("test_error_handling", "test_tool_with_progress", "test_missing_capability", "test_tool_with_logging")
DEFAULTS: Mapping[str, JsonObject] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
OPTIONS = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
FORMS: Mapping[str, Mapping[str, JsonObject]] = {
    "test_elicitation": {"username": {"type": "string"}, "email": {"type": "string"}},
    "test_elicitation_sep1034_defaults": DEFAULTS,
    "test_elicitation_sep1330_enums": {
        "untitledSingle": {"type": "string", "enum": OPTIONS},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {"type": "string", "enum": OPTIONS, "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}
"""The tools that show a form while the client waits, each with the fields."""
TOOLS = (*CONTENTS, *ASKING, *OTHERS, *FORMS, "test_sampling")


def make_tools() -> list[Tool]:
    """Return the tools."""
    return [Tool(name=name, description=f"{name}.", input_schema={"type": "object"}) for name in TOOLS]


async def call_fixture(ctx: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
    """Call one of the tools."""
    if params.name in ASKING:
        return ask(ctx, params)
    arguments: dict[str, Any] = dict(params.arguments or {})
    if params.name in FORMS:
        schema: JsonObject = {"type": "object", "properties": dict(FORMS[params.name]), "required": []}
        answer = await ctx.session.elicit_form(arguments.get("message", "Please choose."), schema, ctx.request_id)
        return CallToolResult(content=[say(f"Completed: action={answer.action}, content={answer.content}")])
    if params.name == "test_sampling":
        message = SamplingMessage(role="user", content=say(str(arguments.get("prompt"))))
        reply = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
        return CallToolResult(content=[say(f"LLM response: {reply.content}")])
    if params.name == "test_tool_with_logging":
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
    if params.name == "test_error_handling":
        return CallToolResult(content=[say("This tool intentionally returns an error for testing")], is_error=True)
    if params.name == "test_missing_capability":
        capabilities = ctx.session.client_capabilities
        if capabilities is None or capabilities.sampling is None:
            data: JsonObject = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="The tool needs `sampling`.", data=data)
    if params.name == "test_tool_with_progress":
        for progress in (0, 50, 100):
            await ctx.session.report_progress(progress, 100)
    return CallToolResult(content=CONTENTS.get(params.name, [say("Done.")]))


def ask(ctx: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
    """Ask for what is missing in the round that the state names, then show the responses."""
    rounds, responses = ASKING[params.name], dict(params.input_responses or {})
    at = read_state(params.request_state) if params.request_state is not None else 0
    wanted = dict(rounds[at])
    if params.name == "test_input_required_result_capabilities":
        declared = ctx.session.client_capabilities
        wanted = {key: each for key, each in wanted.items() if getattr(declared, CAPABILITIES[each.method], None)}
    if set(wanted) <= set(responses):
        if at + 1 < len(rounds):
            return InputRequiredResult(input_requests=dict(rounds[at + 1]), request_state=make_state(at + 1))
        shown = {key: each.model_dump(mode="json") for key, each in responses.items() if key in wanted}
        return CallToolResult(content=[say(f"state-ok {shown}")])
    has_state = len(rounds) > 1 or "state" in params.name or "multiple" in params.name
    return InputRequiredResult(input_requests=wanted, request_state=make_state(at) if has_state else None)


def make_state(at: int) -> str:
    """Return the signed state of a round."""
    return f"{at}.{hmac.new(KEY, b'%d' % at, hashlib.sha256).hexdigest()}"


def read_state(state: str) -> int:
    """Return the round of a state."""
    number = state.partition(".")[0]
    if not (number.isdecimal() and hmac.compare_digest(state, make_state(int(number)))):
        raise MCPError(code=INVALID_PARAMS, message="The request state was changed.")
    return int(number)


async def list_prompts(ctx: Any, params: PaginatedRequestParams | None) -> ListPromptsResult:
    """List the prompts."""
    arguments = {name: [PromptArgument(name=each, required=True) for each in names] for name, names in PROMPTS.items()}
    prompts = [Prompt(name=name, description=f"{name}.", arguments=each) for name, each in arguments.items()]
    return ListPromptsResult(prompts=prompts, **CACHED)


async def get_prompt(ctx: Any, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    """Return a prompt. One of them asks first."""
    given: dict[str, Any] = dict(params.arguments or {})
    contents: list[Any] = [say("This is a simple prompt for testing.")]
    match params.name:
        case "test_prompt_with_arguments":
            contents = [say(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            resource = embed(given["resourceUri"], "Embedded resource content for testing.")
            contents = [resource, say("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            contents = [IMAGE, say("Please analyze the image above.")]
        case "test_input_required_result_prompt" if "user_context" not in (params.input_responses or {}):
            question = form("What context should the prompt use?", "context")
            return InputRequiredResult(input_requests={"user_context": question})
        case name if name not in PROMPTS:
            raise MCPError(code=INVALID_PARAMS, message="There is no such prompt.")
    return GetPromptResult(messages=[PromptMessage(role="user", content=each) for each in contents])


async def list_resources(ctx: Any, params: PaginatedRequestParams | None) -> ListResourcesResult:
    """List the resources."""
    names = {"test://static-text": "text/plain", "test://static-binary": "image/png", "test://watched-resource": None}
    resources = [Resource(uri=uri, name=uri, description=uri, mime_type=each) for uri, each in names.items()]
    return ListResourcesResult(resources=resources, **CACHED)


async def list_templates(ctx: Any, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    """List the template."""
    template = ResourceTemplate(uri_template="test://template/{id}/data", name="data", mime_type="application/json")
    return ListResourceTemplatesResult(resource_templates=[template], **CACHED)


async def read_resource(ctx: Any, params: ReadResourceRequestParams) -> ReadResourceResult:
    """Return a resource."""
    uri = str(params.uri)
    content: TextResourceContents | BlobResourceContents
    if uri == "test://static-binary":
        content = BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
    elif uri.startswith("test://template/"):
        id = uri.split("/")[3]
        text = f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'
        content = TextResourceContents(uri=uri, mime_type="application/json", text=text)
    elif uri in ("test://static-text", "test://watched-resource"):
        text = "This is the content of the static text resource."
        content = TextResourceContents(uri=uri, mime_type="text/plain", text=text)
    else:
        raise MCPError(code=INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    return ReadResourceResult(contents=[content], **CACHED)


async def accept(ctx: Any, params: Any) -> EmptyResult:
    """Accept a subscription, its end, or a level of logging."""
    return EmptyResult()


async def complete(ctx: Any, params: CompleteRequestParams) -> CompleteResult:
    """Complete an argument."""
    return CompleteResult(completion=Completion(values=["paris", "park", "party"], total=3, has_more=False))

"""The tool by which a model looks at artifacts, as the model sees it."""

import io
import zipfile
from typing import Any

import pytest
from google.genai import types

from waystation.artifacts import InMemoryArtifactService
from waystation.models.llm_request import LlmRequest
from waystation.tools.base_tool import declare
from waystation.tools.load_artifacts_tool import LoadArtifactsTool, format_artifact, load_artifacts_tool
from waystation.tools.services import Services
from waystation.tools.session_view import Session
from waystation.tools.tool_context import ToolContext

PNG = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
ASKED = types.Content(role="user", parts=[types.Part(text="What is in it?")])


async def context_of(**artifacts: types.Part) -> ToolContext:
    """Return a context of a session with these artifacts; `user_x` stands for `user:x`."""
    context = ToolContext(
        session=Session(id="s1", app_name="shop", user_id="ann"), services=Services(artifacts=InMemoryArtifactService())
    )
    for name, part in artifacts.items():
        await context.save_artifact(name.replace("user_", "user:"), part)
    return context


def answered(*names: Any, tool: str = "load_artifacts") -> types.Content:
    """Return the response to a call that asked for these artifacts."""
    response = {"artifact_names": list(names)}
    return types.Content(role="user", parts=[types.Part.from_function_response(name=tool, response=response)])


async def requested(
    context: ToolContext, *contents: types.Content, tool: LoadArtifactsTool = load_artifacts_tool
) -> list[types.Content]:
    """Return what the tool adds to a conversation."""
    request = LlmRequest(contents=contents, tools_dict={"load_artifacts": tool})
    await tool.process_llm_request(tool_context=context, llm_request=request)
    assert request.contents[: len(contents)] == list(contents)
    return request.contents[len(contents) :]


def told(name: str, part: types.Part) -> types.Content:
    """Return how an artifact is shown."""
    return types.Content(role="user", parts=[types.Part(text=f"Artifact {name} is:"), part])


async def test_a_call_says_that_the_artifacts_are_shown() -> None:
    """With ADK's text; names that are none are refused."""
    run = load_artifacts_tool.run_async
    assert await run(args={"artifact_names": ["a", "b"]}, tool_context=await context_of()) == {
        "artifact_names": ["a", "b"],
        "status": "artifact contents temporarily inserted and removed. to access these artifacts, "
        "call load_artifacts tool again.",
    }
    for names in ("a", [1], {"a": 1}, None):
        assert await run(args={"artifact_names": names}, tool_context=ToolContext()) == {
            "error": "'artifact_names' must be a list of strings.",
            "error_code": "INVALID_ARGUMENTS",
        }


async def test_the_model_is_told_which_artifacts_there_are() -> None:
    """With ADK's parameters; without artifacts it is only declared."""
    for context, instruction in (
        (await context_of(), None),
        (
            await context_of(b=PNG, user_a=PNG),
            'These artifacts exist: ["b", "user:a"]. Before you answer anything about one of them, call '
            "load_artifacts with its name, also when it was loaded before: contents are shown once only, and may "
            "have changed.",
        ),
    ):
        request = LlmRequest(contents=[ASKED], tools_dict={"load_artifacts": load_artifacts_tool})
        await load_artifacts_tool.process_llm_request(tool_context=context, llm_request=request)
        assert request.config.system_instruction == instruction
        assert request.config.tools is not None
        (tool,) = request.config.tools
        assert isinstance(tool, types.Tool)
        assert [function.name for function in tool.function_declarations or ()] == ["load_artifacts"]
        assert request.contents == [ASKED]
    assert declare(load_artifacts_tool) == {
        "name": "load_artifacts",
        "description": "Show the contents of artifacts, such as files that the user has uploaded, for the next answer.",
        "parametersJsonSchema": {
            "type": "object",
            "properties": {"artifact_names": {"type": "array", "items": {"type": "string"}}},
        },
    }


async def test_what_the_model_asked_for_is_shown_in_the_next_request() -> None:
    """Under the name that it used, which may lack the prefix `user:`."""
    note = types.Part(text="a note")
    context = await context_of(a=PNG, user_b=note)
    assert await requested(context, ASKED, answered("a", "b", "user:b")) == [
        told("a", PNG),
        told("b", note),
        told("user:b", note),
    ]


async def test_it_is_shown_once() -> None:
    """Not in later requests, and not for the response of another tool."""
    context = await context_of(a=PNG)
    reply = types.Content(role="model", parts=[types.Part(text="A picture.")])
    assert await requested(context, answered("a"), reply, ASKED) == []
    assert await requested(context, answered("a"), reply, answered(tool="other")) == []
    assert await requested(context, answered("a", tool="other")) == []


async def test_it_is_shown_also_behind_what_other_tools_inserted() -> None:
    """Such as preloaded memories."""
    context = await context_of(a=PNG)
    assert await requested(context, answered("a"), ASKED) == [told("a", PNG)]


async def test_only_what_is_listed_for_the_session_is_shown() -> None:
    """The model's names are not to be trusted; the rest is shown all the same."""
    context = await context_of(a=PNG)
    other = ToolContext(session=Session(id="s2", app_name="shop", user_id="ann"), services=context._services)
    await other.save_artifact("secret", PNG)
    assert await requested(context, answered("secret", "../s2/secret", "user:a", "", "a")) == [told("a", PNG)]
    assert await requested(context, answered(1)) == []


async def test_an_author_may_decide_what_is_shown() -> None:
    """By a function, sync or async, that returns a Part, or None to show nothing; one that raises shows nothing."""
    context = await context_of(a=PNG, b=PNG, c=PNG, user_d=PNG)

    async def later(name: str) -> types.Part:
        return types.Part(text=f"later {name}")

    def process(artifact: types.Part, name: str) -> Any:
        assert artifact == PNG
        match name:
            case "a":
                return types.Part(text="at once")
            case "b":
                return None
            case "c":
                raise ValueError(name)
            case _:
                return later(name)

    tool = LoadArtifactsTool(process_artifact=process)
    assert await requested(context, answered("a", "b", "c", "d"), tool=tool) == [
        told("a", types.Part(text="at once")),
        told("d", types.Part(text="later user:d")),
    ]


def word(document: bytes, name: str = "word/document.xml") -> bytes:
    """Return a Word file with this document."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, document)
    return file.getvalue()


NAMESPACE = b'xmlns:%s="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
PARAGRAPHS = b'<%s:p a="1"><%s:tab/><%s:t>one &amp; </%s:t><%s:t xml:space="preserve">two</%s:t></%s:p>'
DOCUMENT = b"<w:document " + NAMESPACE % b"w" + b">" + PARAGRAPHS.replace(b"%s", b"w") + b"<w:p><w:t>three</w:t></w:p>"


@pytest.mark.parametrize(
    ("data", "mime_type", "name", "text"),
    [
        (b"gr\xc3\xbc\xc3\x9fe", "text/plain; charset=utf-8", "f", "grüße"),
        (b"\xff", "text/plain", "f", "\ufffd"),
        (b"{}", "application/json", "f", "{}"),
        (b"<svg/>", "image/svg+xml", "f", "<svg/>"),
        (b"a,b", "application/octet-stream", "f.CSV", "a,b"),
        (
            b"\0" * 1536,
            "application/x-tar",
            "f.tar",
            "[Binary artifact: f.tar, type: application/x-tar, size: 1.5 KB. Content cannot be displayed inline.]",
        ),
        (
            b"x",
            "",
            "f",
            "[Binary artifact: f, type: application/octet-stream, size: 0.0 KB. Content cannot be displayed inline.]",
        ),
        (word(DOCUMENT), DOCX, "f", "one & two\nthree"),
        (word(DOCUMENT.replace(b"w:", b"ns0:").replace(b"xmlns:w=", b"xmlns:ns0=")), "", "f", "one & two\nthree"),
        (word(DOCUMENT, "other.xml"), "a/b", "f.docx", None),
        (word(DOCUMENT)[:-30], DOCX, "f", None),
        (word(DOCUMENT)[:40] + b"\xff" * 20 + word(DOCUMENT)[60:], DOCX, "f", None),
    ],
    ids=[
        "text",
        "broken text",
        "json",
        "svg",
        "by its name",
        "binary",
        "untyped",
        "word",
        "word with another prefix",
        "no word",
        "cut off",
        "damaged",
    ],
)
def test_what_a_model_cannot_take_is_shown_as_text(data: bytes, mime_type: str, name: str, text: str | None) -> None:
    """As text where it has any, else as a note of what it is."""
    part = format_artifact(types.Part(inline_data=types.Blob(data=data, mime_type=mime_type)), name)
    assert part.text is not None
    assert part.text == text or (text is None and part.text.startswith(f"[Binary artifact: {name}, "))


def test_an_endless_document_is_cut() -> None:
    """A small file may hold terabytes."""
    data = word(b"<w:p><w:t>" + b"x" * 20_000_000 + b"</w:t></w:p><w:p><w:t>end</w:t></w:p>")
    assert len(data) < 100_000
    assert format_artifact(types.Part.from_bytes(data=data, mime_type=DOCX), "f").text == ""


@pytest.mark.parametrize("mime_type", ["image/png", "audio/wav", "video/mp4", "application/pdf"])
def test_media_is_shown_as_it_is(mime_type: str) -> None:
    """With its type spelt as Gemini wants it."""
    part = types.Part.from_bytes(data=b"x", mime_type=mime_type)
    assert format_artifact(part, "f") is part
    assert format_artifact(types.Part.from_bytes(data=b"x", mime_type=mime_type.upper()), "f") == part
    file = types.Part.from_uri(file_uri="gs://bucket/film", mime_type=mime_type)
    assert format_artifact(file, "f") is file


def test_media_without_data_is_a_note() -> None:
    """There is nothing to show."""
    part = format_artifact(types.Part(inline_data=types.Blob(mime_type="a/b")), "f")
    assert part.text == "[Artifact: f, type: a/b. No inline data was provided.]"

"""The tool that loads artifacts for the model."""

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


def artifact_response(*names: Any, tool: str = "load_artifacts") -> types.Content:
    """Return the response to a call that loads these artifacts."""
    response = {"artifact_names": list(names)}
    return types.Content(role="user", parts=[types.Part.from_function_response(name=tool, response=response)])


async def added_contents(
    context: ToolContext, *contents: types.Content, tool: LoadArtifactsTool = load_artifacts_tool
) -> list[types.Content]:
    """Return the contents that the tool adds to a conversation."""
    request = LlmRequest(contents=contents, tools_dict={"load_artifacts": tool})
    await tool.process_llm_request(tool_context=context, llm_request=request)
    assert request.contents[: len(contents)] == list(contents)
    return request.contents[len(contents) :]


def displayed(name: str, part: types.Part) -> types.Content:
    """Return the content that shows an artifact."""
    return types.Content(role="user", parts=[types.Part(text=f"Artifact {name} is:"), part])


async def test_a_call_announces_the_artifacts() -> None:
    """The response has ADK's text, and invalid names are refused."""
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


async def test_the_model_knows_the_names_of_artifacts() -> None:
    """The request lists the artifacts for the model; without artifacts, the tool is only declared."""
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


async def test_loaded_artifacts_are_in_the_next_request() -> None:
    """The artifacts have the model's names, which may lack the prefix `user:`."""
    note = types.Part(text="a note")
    context = await context_of(a=PNG, user_b=note)
    assert await added_contents(context, ASKED, artifact_response("a", "b", "user:b")) == [
        displayed("a", PNG),
        displayed("b", note),
        displayed("user:b", note),
    ]


async def test_an_artifact_is_shown_once() -> None:
    """An artifact is shown once, and not in later requests or after the response of another tool."""
    context = await context_of(a=PNG)
    reply = types.Content(role="model", parts=[types.Part(text="A picture.")])
    assert await added_contents(context, artifact_response("a"), reply, ASKED) == []
    assert await added_contents(context, artifact_response("a"), reply, artifact_response(tool="other")) == []
    assert await added_contents(context, artifact_response("a", tool="other")) == []


async def test_an_artifact_is_shown_after_insertions_of_other_tools() -> None:
    """An artifact is shown even if another tool has inserted contents, such as preloaded memories."""
    context = await context_of(a=PNG)
    assert await added_contents(context, artifact_response("a"), ASKED) == [displayed("a", PNG)]


async def test_only_artifacts_of_the_session_are_shown() -> None:
    """Unknown names of the model are ignored, and the other artifacts are shown."""
    context = await context_of(a=PNG)
    other = ToolContext(session=Session(id="s2", app_name="shop", user_id="ann"), services=context._services)
    await other.save_artifact("secret", PNG)
    assert await added_contents(context, artifact_response("secret", "../s2/secret", "user:a", "", "a")) == [
        displayed("a", PNG)
    ]
    assert await added_contents(context, artifact_response(1)) == []


async def test_an_author_may_choose_the_displayed_part() -> None:
    """A sync or async function returns a Part, or None to hide the artifact; an exception hides it, too."""
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
    assert await added_contents(context, artifact_response("a", "b", "c", "d"), tool=tool) == [
        displayed("a", types.Part(text="at once")),
        displayed("d", types.Part(text="later user:d")),
    ]


def word(document: bytes, name: str = "word/document.xml") -> bytes:
    """Return a Word document."""
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
def test_unsupported_content_is_shown_as_text(data: bytes, mime_type: str, name: str, text: str | None) -> None:
    """Unsupported content is shown as text, or as a note about its type if it has no text."""
    part = format_artifact(types.Part(inline_data=types.Blob(data=data, mime_type=mime_type)), name)
    assert part.text is not None
    assert part.text == text or (text is None and part.text.startswith(f"[Binary artifact: {name}, "))


def test_a_document_of_any_size_is_cut() -> None:
    """A document is cut after a bounded size, because a small file may decompress to terabytes."""
    data = word(b"<w:p><w:t>" + b"x" * 20_000_000 + b"</w:t></w:p><w:p><w:t>end</w:t></w:p>")
    assert len(data) < 100_000
    assert format_artifact(types.Part.from_bytes(data=data, mime_type=DOCX), "f").text == ""


@pytest.mark.parametrize("mime_type", ["image/png", "audio/wav", "video/mp4", "application/pdf"])
def test_media_is_passed_unchanged(mime_type: str) -> None:
    """Media is passed unchanged, except for the spelling of its type for Gemini."""
    part = types.Part.from_bytes(data=b"x", mime_type=mime_type)
    assert format_artifact(part, "f") is part
    assert format_artifact(types.Part.from_bytes(data=b"x", mime_type=mime_type.upper()), "f") == part
    file = types.Part.from_uri(file_uri="gs://bucket/film", mime_type=mime_type)
    assert format_artifact(file, "f") is file


def test_media_without_data_is_a_note() -> None:
    """A note replaces media without data."""
    part = format_artifact(types.Part(inline_data=types.Blob(mime_type="a/b")), "f")
    assert part.text == "[Artifact: f, type: a/b. No inline data was provided.]"

"""The tool by which a model looks at artifacts. Its name, parameters and responses are ADK's."""

from __future__ import annotations

import html
import inspect
import io
import json
import re
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from waystation.artifacts.base_artifact_service import USER_PREFIX
from waystation.core import JsonObject
from waystation.tools import BaseTool, ToolContext, declaration

if TYPE_CHECKING:
    from google.genai.types import Content, Part

    from waystation.models.llm_request import LlmRequest

log = structlog.get_logger("waystation.tools")

ProcessArtifact = Callable[["Part", str], "Part | Awaitable[Part | None] | None"]
"""Takes an artifact and its name; returns what the model is shown, or None to leave it out."""

_DESCRIPTION = "Show the contents of artifacts, such as files that the user has uploaded, for the next answer."
_STATUS = (
    "artifact contents temporarily inserted and removed. to access these artifacts, call load_artifacts tool again."
)
_HINT = (
    "These artifacts exist: {names}. Before you answer anything about one of them, call load_artifacts with its name, "
    "also when it was loaded before: contents are shown once only, and may have changed."
)

_SEEN = ("image/", "audio/", "video/")
_XML_IMAGES = ("image/svg", "image/svg+xml", "image/xml")
_TEXTS = ("application/csv", "application/json", "application/svg+xml", "application/xml", *_XML_IMAGES)
_TEXT_SUFFIXES = (".csv", ".txt", ".json", ".xml")
_OCTETS = "application/octet-stream"
_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_WORD_NAMESPACE = re.compile(r'xmlns:(\w+)="http://schemas\.openxmlformats\.org/wordprocessingml/2006/main"')
MAX_DOCX_BYTES = 10 * 1024 * 1024
"""How much of a Word document is read; it is compressed, and may be made to be endless."""


class LoadArtifactsTool(BaseTool):
    """Tells the model which artifacts there are, and shows it those that it asks for.

    Their content is in the one request that follows the call, and never in history.
    """

    effect = "read"

    def __init__(self, *, process_artifact: ProcessArtifact | None = None) -> None:
        """With `process_artifact`, what it returns is shown instead of what `shown` makes of an artifact."""
        super().__init__(name="load_artifacts", description=_DESCRIPTION)
        self._process_artifact = process_artifact

    def _get_declaration(self) -> JsonObject | None:
        names = {"type": "array", "items": {"type": "string"}}
        return declaration(self.name, self.description, {"type": "object", "properties": {"artifact_names": names}})

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Answer that the artifacts are shown, which happens in the next request."""
        names = args.get("artifact_names", [])
        if not _are_names(names):
            return {"error": "'artifact_names' must be a list of strings.", "error_code": "INVALID_ARGUMENTS"}
        return {"artifact_names": list(names), "status": _STATUS}

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Declare the tool, tell the model which artifacts there are, and show it those that it just asked for."""
        from google.genai.types import Content, Part

        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        available = await tool_context.list_artifacts()
        if not available:
            return
        llm_request.append_instructions([_HINT.format(names=json.dumps(available))])
        for name in _asked_for(llm_request.contents):
            part = await self._shown(name, available, tool_context)
            if part is not None:
                parts = [Part.from_text(text=f"Artifact {name} is:"), part]
                llm_request.contents.append(Content(role="user", parts=parts))

    async def _shown(self, asked: str, available: Sequence[str], context: ToolContext) -> Part | None:
        # The model chose the name: only what was listed for this session is loaded. Models drop the prefix.
        name = asked if asked in available else f"{USER_PREFIX}{asked}"
        artifact = await context.load_artifact(name) if name in available else None
        if artifact is None:
            log.warning("artifact.not_shown", agent=context.agent_name, reason="not in this session")
            return None
        if self._process_artifact is None:
            return shown(artifact, asked)
        try:
            made = self._process_artifact(artifact, name)
            return await made if inspect.isawaitable(made) else made
        except Exception as error:  # noqa: BLE001  # author's code
            log.warning("artifact.not_shown", agent=context.agent_name, reason=type(error).__name__)
            return None


def shown(artifact: Part, name: str) -> Part:
    """Return what a Gemini model can take of an artifact: media as it is, text as text, else a note of what it is."""
    from google.genai.types import Part

    blob = artifact.inline_data
    if blob is None:
        return artifact
    given = blob.mime_type or ""
    base, separator, parameters = given.partition(";")
    kind = base.strip().lower()
    if (kind.startswith(_SEEN) and kind not in _XML_IMAGES) or kind == "application/pdf":
        # As Gemini spells it.
        spelt = f"{kind}{separator}{parameters}"
        if spelt == given:
            return artifact
        return artifact.model_copy(update={"inline_data": blob.model_copy(update={"mime_type": spelt})})
    kind = kind or _OCTETS
    if blob.data is None:
        return Part.from_text(text=f"[Artifact: {name}, type: {kind}. No inline data was provided.]")
    text = None
    if kind in (_DOCX, _OCTETS) or name.lower().endswith(".docx"):
        text = _word_text(blob.data)
    if text is None and (kind.startswith("text/") or kind in _TEXTS or name.lower().endswith(_TEXT_SUFFIXES)):
        text = blob.data.decode("utf-8", "replace")
    if text is None:
        size = len(blob.data) / 1024
        text = f"[Binary artifact: {name}, type: {kind}, size: {size:.1f} KB. Content cannot be displayed inline.]"
    return Part.from_text(text=text)


def _word_text(data: bytes) -> str | None:
    """Return the paragraphs of a Word document, or None when it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("word/document.xml") as file:
            # Not an XML parser: entities that expand without end would be expanded.
            document = file.read(MAX_DOCX_BYTES).decode("utf-8", "ignore")
    # What zipfile raises on what is no archive, is a broken one, or needs a password.
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        return None
    namespace = _WORD_NAMESPACE.search(document)
    prefix = re.escape(namespace[1]) if namespace else "w"
    texts = re.compile(rf"<{prefix}:t(?:\s[^>]*)?>([^<]*)</{prefix}:t>")
    paragraphs = [texts.findall(paragraph) for paragraph in re.split(rf"<{prefix}:p(?:\s[^>]*)?>", document)]
    return "\n".join(html.unescape("".join(found)) for found in paragraphs if found)


def _are_names(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(n, str) for n in value)


def _asked_for(contents: Sequence[Content]) -> list[str]:
    """Return what the model asked for in its last turn: in the responses that end the conversation.

    Other tools may have put contents of the user's side behind them.
    """
    for content in reversed(contents):
        responses = [part.function_response for part in content.parts or () if part.function_response]
        if responses or content.role != "user":
            answered = [response.response or {} for response in responses if response.name == "load_artifacts"]
            found = [names for answer in answered if _are_names(names := answer.get("artifact_names", []))]
            return [name for names in found for name in names]
    return []


load_artifacts_tool = LoadArtifactsTool()

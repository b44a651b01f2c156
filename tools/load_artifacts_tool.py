"""The tool that shows artifacts to the model. Its name, parameters and responses are the same as in ADK."""

from __future__ import annotations

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
from waystation.core.payload import JsonObject
from waystation.tools import BaseTool, ToolContext, declaration

if TYPE_CHECKING:
    from google.genai.types import Content, Part

    from waystation.models.llm_request import EditableRequest

log = structlog.get_logger("waystation.tools")

ProcessArtifact = Callable[["Part", str], "Part | Awaitable[Part | None] | None"]
"""A function that takes an artifact and its name, and returns a Part for the model or None to omit the artifact."""

_DESCRIPTION = "Show the contents of artifacts, such as files that the user has uploaded, for the next answer."
_STATUS = (
    "artifact contents temporarily inserted and removed. to access these artifacts, call load_artifacts tool again."
)
_HINT = (
    "These artifacts exist: {names}. Before you answer anything about one of them, call load_artifacts with its name, "
    "also when it was loaded before: contents are shown once only, and may have changed."
)

_MEDIA = ("image/", "audio/", "video/")
_XML_IMAGES = ("image/svg", "image/svg+xml", "image/xml")
_TEXTS = ("application/csv", "application/json", "application/svg+xml", "application/xml", *_XML_IMAGES)
_TEXT_SUFFIXES = (".csv", ".txt", ".json", ".xml")
_OCTETS = "application/octet-stream"
_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_WORD_NAMESPACE = re.compile(r'xmlns:(\w+)="http://schemas\.openxmlformats\.org/wordprocessingml/2006/main"')
MAX_DOCX_BYTES = 10 * 1024 * 1024
"""Size limit for the decompressed text of a Word document, as a defense against zip bombs."""


class LoadArtifactsTool(BaseTool):
    """A tool that lists the artifacts for the model and shows it the ones that it requests.

    The contents are added to the next model request only and are never stored in the history.
    """

    effect = "read"

    def __init__(self, *, process_artifact: ProcessArtifact | None = None) -> None:
        """Initialize the tool.

        If given, `process_artifact` is called instead of `format_artifact` to convert artifacts for the model.
        """
        super().__init__(name="load_artifacts", description=_DESCRIPTION)
        self._process_artifact = process_artifact

    def _get_declaration(self) -> JsonObject | None:
        names = {"type": "array", "items": {"type": "string"}}
        return declaration(self.name, self.description, {"type": "object", "properties": {"artifact_names": names}})

    async def run_async(self, *, args: JsonObject, tool_context: ToolContext) -> Any:
        """Return a status for the model. The artifacts themselves are added to the next request.

        Raises:
            StoreFailed: This conversation saved one of the artifacts, but the store does not have it.
        """
        names = args.get("artifact_names", [])
        if not _are_names(names):
            return {"error": "'artifact_names' must be a list of strings.", "error_code": "INVALID_ARGUMENTS"}
        available = await tool_context.list_artifacts() if names else ()
        for name in names:
            if not {name, f"{USER_PREFIX}{name}"} & set(available):
                # These calls raise if the conversation saved the artifact.
                await tool_context.load_artifact(name)
                await tool_context.load_artifact(f"{USER_PREFIX}{name}")
        return {"artifact_names": list(names), "status": _STATUS}

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: EditableRequest) -> None:
        """Declare the tool, list the available artifacts, and add the contents of those the model just requested."""
        from google.genai.types import Content, Part

        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        available = await tool_context.list_artifacts()
        if not available:
            return
        llm_request.append_instructions([_HINT.format(names=json.dumps(available))])
        for name in _requested_names(llm_request.contents):
            part = await self._load_part(name, available, tool_context)
            if part is not None:
                parts = [Part.from_text(text=f"Artifact {name} is:"), part]
                llm_request.contents.append(Content(role="user", parts=parts))

    async def _load_part(self, requested: str, available: Sequence[str], context: ToolContext) -> Part | None:
        # The model supplies the name, so load only listed artifacts. Models tend to drop the `user:` prefix.
        name = requested if requested in available else f"{USER_PREFIX}{requested}"
        artifact = await context.load_artifact(name) if name in available else None
        if artifact is None:
            log.warning("artifact.not_shown", agent=context.agent_name, reason="not in this session")
            return None
        if self._process_artifact is None:
            return format_artifact(artifact, requested)
        try:
            part = self._process_artifact(artifact, name)
            return await part if inspect.isawaitable(part) else part
        except Exception as error:  # noqa: BLE001  # user code
            log.warning("artifact.not_shown", agent=context.agent_name, reason=type(error).__name__)
            return None


def format_artifact(artifact: Part, name: str) -> Part:
    """Convert an artifact to a form that Gemini accepts.

    Media is passed on unchanged, text is passed as text, and other data is replaced by a short description.
    """
    from google.genai.types import Part

    blob = artifact.inline_data
    if blob is None:
        return artifact
    mime_type = blob.mime_type or ""
    base, separator, parameters = mime_type.partition(";")
    kind = base.strip().lower()
    if (kind.startswith(_MEDIA) and kind not in _XML_IMAGES) or kind == "application/pdf":
        # Gemini accepts only lowercase MIME types.
        normalized = f"{kind}{separator}{parameters}"
        if normalized == mime_type:
            return artifact
        return artifact.model_copy(update={"inline_data": blob.model_copy(update={"mime_type": normalized})})
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
    """Return the text of a Word document, one paragraph per line, or None if the data is not a Word document."""
    import html  # slow to import, and rarely needed

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("word/document.xml") as file:
            # Do not use an XML parser, because it would expand malicious entities.
            document = file.read(MAX_DOCX_BYTES).decode("utf-8", "ignore")
    # These are the errors that zipfile raises for other data and for damaged or encrypted archives.
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        return None
    namespace = _WORD_NAMESPACE.search(document)
    prefix = re.escape(namespace[1]) if namespace else "w"
    texts = re.compile(rf"<{prefix}:t(?:\s[^>]*)?>([^<]*)</{prefix}:t>")
    paragraphs = [texts.findall(paragraph) for paragraph in re.split(rf"<{prefix}:p(?:\s[^>]*)?>", document)]
    return "\n".join(html.unescape("".join(runs)) for runs in paragraphs if runs)


def _are_names(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(n, str) for n in value)


def _requested_names(contents: Sequence[Content]) -> list[str]:
    """Return the artifact names in the most recent responses of load_artifacts.

    Skip user contents at the end, because other tools may have appended them after those responses.
    """
    for content in reversed(contents):
        responses = [part.function_response for part in content.parts or () if part.function_response]
        if responses or content.role != "user":
            results = [response.response or {} for response in responses if response.name == "load_artifacts"]
            lists = [names for result in results if _are_names(names := result.get("artifact_names", []))]
            return [name for names in lists for name in names]
    return []


load_artifacts_tool = LoadArtifactsTool()

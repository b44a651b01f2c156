"""The request as callbacks and tools see it: genai's types, to be changed in place.

Made only where somebody looks at it, since the types take a second to import. The names are those of ADK's LlmRequest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waystation.core import JsonObject

if TYPE_CHECKING:
    from google.genai import types


_MEDIA_DETAILS = {"displayName": "'{}'", "fileUri": "URI: {}", "mimeType": "type: {}"}
"""ADK's words for what an instruction's text says of its media."""


class LlmRequest:
    """One model call that is about to be made."""

    def __init__(
        self,
        *,
        model: str | None = None,
        contents: Sequence[types.Content] = (),
        config: types.GenerateContentConfig | None = None,
        tools_dict: dict[str, Any] | None = None,
    ) -> None:
        from google.genai import types

        self.model = model
        self.contents: list[types.Content] = list(contents)
        """The conversation, oldest first."""
        self.config: types.GenerateContentConfig = config or types.GenerateContentConfig()
        """Generation settings, `system_instruction` and `tools` included."""
        self.tools_dict: dict[str, Any] = tools_dict if tools_dict is not None else {}
        """The tools that the model may call, by name."""

    def append_instructions(self, instructions: list[str] | types.Content) -> list[types.Content]:
        """Append to the system instruction.

        Args:
            instructions: Texts; or a Content, of which text goes to the system instruction, and media, referred to
                from there, to the contents.

        Returns:
            The contents that were added for media.

        Raises:
            TypeError: It is something else.
        """
        from google.genai import types

        added: list[types.Content] = []
        if isinstance(instructions, types.Content):
            texts, media = split_instruction(instructions.model_dump(mode="json", by_alias=True, exclude_none=True))
            added = [types.Content.model_validate(content) for content in media]
            self.contents.extend(added)
        elif isinstance(instructions, list):
            texts = instructions
        else:
            raise TypeError(f"instructions must be list[str] or types.Content, got {type(instructions).__name__}.")
        if texts:
            given = self.config.system_instruction
            self.config.system_instruction = joined(given if isinstance(given, str) else None, "\n\n".join(texts))
        return added

    def append_tools(self, tools: Sequence[Any]) -> None:
        """Declare tools to the model.

        Raises:
            ValueError: One is none of the agent's, so that no worker could run a call of it.
        """
        from google.genai import types

        declared: list[types.FunctionDeclaration] = []
        for tool in tools:
            if not any(known is tool for known in self.tools_dict.values()):
                raise ValueError(
                    f"The tool {tool.name!r} is none of the agent's; put it, or its toolset, into `tools`."
                )
            if declaration := tool._get_declaration():
                declared.append(types.FunctionDeclaration.model_validate(declaration))
        if not declared:
            return
        present = list(self.config.tools or ())
        for known in present:
            if isinstance(known, types.Tool) and known.function_declarations:
                known.function_declarations.extend(declared)
                return
        self.config.tools = [types.Tool(function_declarations=declared), *present]

    def set_output_schema(self, output_schema: Any = None) -> None:
        """Have the model answer with JSON of this schema.

        Raises:
            ValueError: None is given.
        """
        if output_schema is None:
            raise ValueError("Pass output_schema=<your_schema>.")
        self.config.response_schema = output_schema
        self.config.response_mime_type = "application/json"


def joined(before: str | None, text: str) -> str:
    """Return a system instruction with a further text."""
    return f"{before}\n\n{text}" if before else text


def split_instruction(content: JsonObject) -> tuple[list[str], list[JsonObject]]:
    """Return the texts of an instruction, and contents for the media in it, to which the texts refer.

    The wire texts are ADK's.
    """
    texts: list[str] = []
    media: list[JsonObject] = []
    for part in content.get("parts") or ():
        if part.get("text"):
            texts.append(part["text"])
            continue
        for kind, name, words in (("inlineData", "inline", "inline binary"), ("fileData", "file", "file")):
            if not (data := part.get(kind)):
                continue
            reference = f"{name}_data_{len(media)}"
            details = ", ".join(form.format(data[key]) for key, form in _MEDIA_DETAILS.items() if data.get(key))
            texts.append(f"[Reference to {words} data: {reference}{f' ({details})' if details else ''}]")
            media.append({"role": "user", "parts": [{"text": f"Referenced {name} data: {reference}"}, {kind: data}]})
    return texts, media

"""The request that callbacks and tools receive and can change in place. It uses genai's types.

It is created only when needed, because importing the types takes a second. The names match ADK's `LlmRequest`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waystation.core.payload import JsonObject

if TYPE_CHECKING:
    from google.genai import types


_MEDIA_DETAILS = {"displayName": "'{}'", "fileUri": "URI: {}", "mimeType": "type: {}"}
"""How to describe the properties of media in an instruction. The wording matches ADK."""


class EditableRequest:
    """The request of a model call before it is sent."""

    def __init__(
        self,
        *,
        model: str | None = None,
        contents: Sequence[types.Content] = (),
        config: types.GenerateContentConfig | None = None,
        tools_dict: dict[str, Any] | None = None,
    ) -> None:
        """Create a request.

        Raises:
            ValidationError: A content or the configuration is not valid.
        """
        from google.genai import types

        self.model = model
        self.contents: list[types.Content] = [types.Content.model_validate(content) for content in contents]
        """The conversation, oldest content first."""
        self.config = types.GenerateContentConfig.model_validate(config or {})
        """The generation settings, including `system_instruction` and `tools`."""
        self.tools_dict: dict[str, Any] = tools_dict if tools_dict is not None else {}
        """The tools that the model may call, by name."""

    def model_copy(self, *, update: JsonObject | None = None, deep: bool = False) -> EditableRequest:
        """Return a copy. Code for ADK calls this method because ADK's class is a pydantic model."""
        return EditableRequest(**{**vars(copy.deepcopy(self) if deep else self), **(update or {})})

    def append_instructions(self, instructions: list[str] | types.Content) -> list[types.Content]:
        """Append to the system instruction, or replace a system instruction that is not a string.

        Args:
            instructions: A list of strings, or a Content. The text of a Content is added to the system instruction. Its
                media is added to the contents, and the system instruction refers to it.

        Returns:
            The contents that were added for media.

        Raises:
            TypeError: `instructions` is neither a list of strings nor a Content.
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
            before = self.config.system_instruction
            self.config.system_instruction = joined(before if isinstance(before, str) else None, "\n\n".join(texts))
        return added

    def append_tools(self, tools: Sequence[Any]) -> None:
        """Declare tools to the model.

        Raises:
            ValueError: A tool does not belong to the agent, so workers could not run its calls.
        """
        from google.genai import types

        declared: list[types.FunctionDeclaration] = []
        for tool in tools:
            if not any(own is tool for own in self.tools_dict.values()):
                raise ValueError(
                    f"Tool {tool.name!r} does not belong to the agent. Add it or its toolset to the agent's `tools`."
                )
            if declaration := tool._get_declaration():
                declared.append(types.FunctionDeclaration.model_validate(declaration))
        if not declared:
            return
        tools_before = list(self.config.tools or ())
        for declaring in tools_before:
            if isinstance(declaring, types.Tool) and declaring.function_declarations:
                declaring.function_declarations.extend(declared)
                return
        self.config.tools = [types.Tool(function_declarations=declared), *tools_before]

    def set_output_schema(self, output_schema: Any = None) -> None:
        """Make the model respond with JSON that matches this schema.

        Raises:
            ValueError: `output_schema` is None.
        """
        if output_schema is None:
            raise ValueError("Pass output_schema=<your_schema>.")
        self.config.response_schema = output_schema
        self.config.response_mime_type = "application/json"


LlmRequest = EditableRequest
"""ADK's name."""


def joined(before: str | None, text: str) -> str:
    """Append `text` to a system instruction."""
    return f"{before}\n\n{text}" if before else text


def split_instruction(content: JsonObject) -> tuple[list[str], list[JsonObject]]:
    """Split an instruction into text and contents for its media. The text refers to the media in ADK's wording."""
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

"""What a user says, as it is recorded: a genai Content in camelCase JSON."""

from typing import Any

from waystation.core.payload import JsonObject


def problem_of(content: JsonObject) -> str | None:
    """Return why an object cannot be what a user says; None when it can."""
    parts = content.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return "a content is an object with a list of `parts`, each an object."
    if any("functionCall" in part or "function_call" in part for part in parts):
        return "a user's message cannot contain function calls."
    if any("functionResponse" in part or "function_response" in part for part in parts):
        return "a user's message cannot contain function responses; send the signal `answer` instead."
    return None


def user_content(message: str | JsonObject) -> JsonObject:
    """Return the message of an invocation as a genai Content in camelCase JSON."""
    if isinstance(message, str):
        return {"role": "user", "parts": [{"text": message}]}
    return {"role": message.get("role") or "user", "parts": [camel_part(part) for part in message["parts"]]}


def camel_part(part: JsonObject) -> JsonObject:
    """Return a genai Part with camelCase keys; genai itself reads both forms."""

    def camel(name: str) -> str:
        head, *tail = name.split("_")
        return head + "".join(word.title() for word in tail)

    def shallow(value: Any) -> Any:
        return (
            {camel(key): item for key, item in value.items() if item is not None} if isinstance(value, dict) else value
        )

    return {camel(key): shallow(value) for key, value in part.items() if value is not None}

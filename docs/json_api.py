"""Write `docs/reference/json-api.md`, the reference of the JSON API: `python -m docs.json_api`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temporalio.client import Client

from waystation.client import AgentClient
from waystation.web.access import Access
from waystation.web.openapi_document import make_document
from waystation.web.server import create_app
from waystation.web.web_settings import WebSettings

PAGE = Path(__file__).parent / "reference" / "json-api.md"
INTRODUCTION = """\
# JSON API

`waystation web` serves these operations below `/api/v1`, the OpenAPI document at `/api/v1/openapi.json`, and a page on
which you can try them at `/api/v1`. [Call agents over HTTP](../how-to/call-agents-over-http.md) shows how to use them.
`python -m docs.json_api` generates this page from the document.

- **Errors** are `application/problem+json` documents, as RFC 9457 defines them. Their `type` is `urn:waystation:error:`
  and a name, which the [catalogue of errors](errors.md) explains. Some names are only used here: `NotLoggedIn`,
  `ForeignForm` (a request with a cookie came from another site), `InvalidRequest`, `TooMany`, `Busy`, `NoServer`
  (Temporal does not answer), `TookTooLong`, `InvocationEnded`, `AsksOperators` (a question to operators is answered,
  not stopped), `UnknownArtifact`, `UnknownSchedule` and `NoQuotas`.
- **Access** is that of the pages: [roles](http.md#access), tenants, and 404 for everything that the caller may not see.
- **IDs** in paths are single segments: write `/` as `%2F`.
- **Requests** take at most 55 seconds. `wait_s` holds a request until something changes.
- **`Idempotency-Key`:** a request that is sent again with the same key and content has one effect. For an answer, the
  key is its `answer_id`; for a message, its `message_id`.
- **Times** are seconds since 1970 in calls, and ISO 8601 elsewhere.
"""


def read_document() -> dict[str, Any]:
    """Return the OpenAPI document. This needs no server."""

    async def read() -> dict[str, Any]:
        client = AgentClient(await Client.connect("localhost:1", lazy=True))
        return make_document(create_app(client, WebSettings(), Access(announce=lambda _: None)).state.table)

    return asyncio.run(read())


def render(document: dict[str, Any]) -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_list_operations(document), "## Types\n", *_list_types(document)])


def _list_operations(document: dict[str, Any]) -> Iterator[str]:
    tag = ""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                yield f"## {tag.capitalize()}\n"
            yield f"### {method.upper()} {path}\n"
            yield f"{operation['summary']} {operation['description']}".strip() + "\n"
            role = operation["x-role"]
            yield f"- Role: {'any login' if role == 'login' else f'`{role}`'}"
            for parameter in operation["parameters"]:
                if parameter["in"] != "path":
                    text = parameter["schema"].get("description", "") or parameter.get("description", "")
                    kind = _name_type(parameter["schema"])
                    yield f"- `{parameter['name']}` ({parameter['in']}, {kind}){f': {text}' if text else ''}"
            if body := operation.get("requestBody"):
                yield f"- Body: {_name_type(body['content']['application/json']['schema'])}"
            codes = [code for code in operation["responses"] if code != "default"]
            ((media, content),) = operation["responses"][codes[0]]["content"].items()
            kind = _name_type(content["schema"]) if media == "application/json" else f"`{media}`"
            event = content.get("itemSchema", {}).get("properties", {}).get("data", {})
            kind += f" of {_name_type(event['contentSchema'])}" if "contentSchema" in event else ""
            yield f"- Response ({', '.join(codes)}): {kind}\n"


def _list_types(document: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {name}\n"
        if schema.get("description"):
            yield " ".join(schema["description"].split()) + "\n"
        for field, part in schema.get("properties", {}).items():
            text = " ".join(part.get("description", "").split())
            needed = ", required" if field in schema.get("required", ()) else ""
            yield f"- `{field}` ({_name_type(part)}{needed}){f': {text}' if text else ''}"
        yield ""


def _name_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_name_type, parts)))
    if choices := schema.get("enum"):
        return " or ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    match schema.get("type"):
        case "array":
            return f"array of {_name_type(schema.get('items', {}))}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {_name_type(schema['additionalProperties'])}"
        case str(kind):
            return kind
        case _:
            return "any JSON"


if __name__ == "__main__":
    PAGE.write_text(render(read_document()), encoding="utf-8")

"""Compare requests with those of swagger-client, for real OpenAPI documents. Run as `python -m tests.openapi_requests`.

Both build a request for each operation from the same arguments, and send it to a service that records it. A difference
is counted under its reason, or printed. npm installs swagger-client beside the documents, outside of the repository.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from tests.openapi_documents import CACHE, documents
from tests.unit.tools.rest_service import Service, call, serving
from waystation.core.payload import JsonObject
from waystation.tools.openapi_tool import OpenAPIToolset
from waystation.tools.openapi_tool.openapi_spec_parser.specification import Operation, dereference

CLIENT = "swagger-client@3.37.3"
MAX_OPERATIONS = 100
"""Maximum number of operations of one document, which are evenly spread."""
TEXT = "a b/ü&c=d,e+f%;g|h"
REASONS = (
    (
        "request",
        "cannot have body",
        "fetch refuses a body of GET and HEAD; Waystation sends one if the model passes it",
    ),
    ("request", "invalid header name", "swagger-client sends headers whose names are not valid"),
    ("request", "Required parameter", "swagger-client requires parameters that OpenAPI ignores, such as Content-Type"),
    ("path|query", "^[^ ]*#", "swagger-client does not fill paths with a fragment, and writes the query after it"),
    (
        "query|body",
        r"^.*\n.*\[\w+\]'",
        "swagger-client does not nest: it repeats arrays, and writes inner objects as JSON",
    ),
    ("body", '\n"', "swagger-client sends a text as JSON without quotes"),
    ("body", 'name="0"', "the schema of a multipart form is a text, so no field has a name; neither body is valid"),
    ("body", "filename=", "for swagger-client, a text is never a file, so its part has no file name and no media type"),
    ("body", r"'\[\{", "without an encoding, swagger-client writes an array of objects as one field"),
    ("body", r"\n.*,a b.*$", "without an encoding, swagger-client joins the items of an array with commas"),
)
"""Known differences of requests: the part, a pattern in the path and both values, and the reason."""


def example(schema: Any, defs: JsonObject, depth: int = 0) -> Any:
    """Return a value that a model could write for a schema, with characters that need encoding."""
    if not isinstance(schema, dict) or depth > 6:
        return TEXT
    if "$ref" in schema:
        return example(defs[schema["$ref"].rpartition("/")[2]], defs, depth + 1)
    options = [schema["const"]] if "const" in schema else schema.get("enum") or ()
    parts = [example(part, defs, depth + 1) for key in ("allOf", "anyOf", "oneOf") for part in schema.get(key) or ()]
    types = [*options, *([schema.get("type")] if isinstance(schema.get("type"), str) else schema.get("type") or ())]
    match types[0] if types else "object" if "properties" in schema else None:
        case value if options:
            return value
        case None if parts:
            return {k: v for part in parts if isinstance(part, dict) for k, v in part.items()} or parts[0]
        case "object":
            more = {"a key": schema["additionalProperties"]} if schema.get("additionalProperties") else {}
            fields = {**more, **dict(list((schema.get("properties") or {}).items())[:12])}
            return {name: example(part, defs, depth + 1) for name, part in fields.items()}
        case "array":
            return [example(schema.get("items"), defs, depth + 1) for _ in range(2)]
        case kind:
            return {"integer": 7, "number": 0.5, "boolean": True}.get(str(kind), TEXT)


def build_case(document: JsonObject, operation: Operation, url: str) -> tuple[JsonObject, JsonObject]:
    """Return the arguments for an operation, and the same for swagger-client with a document of its own."""
    item = dereference(document, document["paths"][operation.path])
    method = operation.method.lower()
    declared = [
        dereference(document, one) for one in [*item.get("parameters", ()), *item[method].get("parameters", ())]
    ]
    raw = {
        **item[method],
        "operationId": "operation",
        "servers": None,
        "parameters": list({(one["name"], one["in"]): one for one in declared}.values()),
        "requestBody": dereference(document, item[method].get("requestBody")),
    }
    args = {p.argument: example(p.schema, operation.defs) for p in operation.parameters}
    args.update(
        {p.argument: "a,b" for p in operation.parameters if p.location == "header" and args[p.argument] == TEXT}
    )
    fields = [p for p in operation.parameters if p.location == "body"]
    body = args[fields[0].argument] if operation.whole_body else {p.name: args[p.argument] for p in fields}
    return args, {
        "spec": {"openapi": "3.0.3", "servers": [{"url": url}], "paths": {operation.path: {method: raw}}},
        "operationId": "operation",
        "parameters": {f"{p.location}.{p.name}": args[p.argument] for p in operation.parameters if p not in fields},
        **({"requestBody": body, "requestContentType": operation.media_type} if operation.media_type else {}),
    }


def normalize(request: JsonObject, operation: Operation) -> JsonObject:
    """Return the parts of a request that both clients must send equally."""
    path, _, query = request["target"].partition("?")
    headers, body = request["headers"], request["body"]
    media_type, _, boundary = headers.get("content-type", "").partition("; boundary=")
    match media_type.partition(";")[0]:
        case "application/x-www-form-urlencoded":
            body = parse_qsl(body, keep_blank_values=True)
        case "multipart/form-data":
            body = re.sub(
                r'; filename="blob"|\r\nContent-Type: application/json', "", body.replace(boundary, "")
            ).split("\r\n")
        case kind if kind.endswith("json") and body[:1] in ("{", "["):
            body = json.loads(body)
    names = ["cookie", *sorted(p.name.lower() for p in operation.parameters if p.location == "header")]
    return {
        "method": request["method"],
        "path": [unquote(part) for part in path.split("/")],
        "query": sorted(parse_qsl(query, keep_blank_values=True)),
        "headers": {name: headers[name] for name in names if name in headers},
        "media type": media_type,
        "body": body,
    }


async def compare(document: JsonObject, service: Service, reasons: Counter[str]) -> None:
    """Compare the requests for the operations of a document."""
    url = f"{service.url}/service"
    toolset = OpenAPIToolset(spec_dict=document, server_url=url, allow_private_network_access=True)
    tools = await toolset.get_tools()
    tools = tools[:: len(tools) // MAX_OPERATIONS + 1]
    cases = [build_case(document, tool.operation, url) for tool in tools]
    ours = []
    for tool, (args, _) in zip(tools, cases, strict=True):
        answer = await call(tool, **args)
        ours.append(service.requests.pop() if service.requests else answer)
    command = ("node", str(Path(__file__).with_suffix(".mjs")), str(CACHE))
    running = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = await running.communicate("".join(json.dumps(case) + "\n" for _, case in cases).encode())
    for tool, our, line in zip(tools, ours, output.splitlines(), strict=True):
        reply = json.loads(line)
        both = [our, reply if "error" in reply else service.requests.pop(0)]
        is_sent = all("target" in one for one in both)
        left, right = [normalize(one, tool.operation) if is_sent else {"request": one} for one in both]
        for part in [part for part in left if left[part] != right[part]]:
            difference = f"{tool.operation.path} {part}\n{left[part]}\n{right[part]}"
            known = [why for where, what, why in REASONS if re.match(where, part) and re.search(what, difference)]
            reasons[next(iter(known), "unexplained")] += 1
            sys.stdout.write("" if known else f"{tool.operation.method} {difference}\n")
    reasons["operations"] += len(tools)


def main(names: list[str]) -> int:
    """Compare the documents whose paths contain one of the names, or all. Return 1 if a difference has no reason."""
    subprocess.run(["npm", "install", "--silent", "--ignore-scripts", "--prefix", CACHE, CLIENT], check=True)
    reasons: Counter[str] = Counter()
    with serving() as service:
        for file in documents():
            if not names or any(name in str(file) for name in names):
                sys.stdout.write(f"{file.name}\n")
                document = json.loads(
                    file.read_text(), object_hook=lambda one: {k: v for k, v in one.items() if k != "security"}
                )
                asyncio.run(compare(document, service, reasons))
    sys.stdout.writelines(f"{number:5} {reason}\n" for reason, number in reasons.most_common())
    return int("unexplained" in reasons)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

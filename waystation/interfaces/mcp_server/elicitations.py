"""Forms of a client in which its person answers calls, and the answers that the forms contain.

A form is only offered to a person who may answer the call, and only if it shows all arguments.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from pydantic import ValidationError

from waystation.core.errors import InvalidAnswer
from waystation.core.payload import JsonObject, digest
from waystation.core.secrets import hide_named_secrets
from waystation.interfaces.open_calls import OpenCall
from waystation.presentation import text_safety, words
from waystation.web.call_api import AnswerBody

MAX_ARGS_CHARS = 4_000
"""Calls with longer arguments are answered on their page, where people can read them."""
APPROVED = ("confirmation", "budget")
"""The kinds of calls that a person approves or rejects. Of the others, only questions have forms."""
PRIMITIVES = ("string", "number", "integer", "boolean")
KEYWORDS = ("type", "title", "description", "enum", "minLength", "maxLength", "minimum", "maximum", "default")
"""The keywords of JSON Schema that forms may have. The worker verifies the response against all of them."""


def make_forms(calls: Sequence[OpenCall]) -> dict[str, tuple[OpenCall, ElicitRequest]]:
    """Return the calls that the person can answer in a form, with their forms.

    The keys change with the question, the run and the arguments of a call, so an answer counts only for the call as it
    was shown.
    """
    forms = {}
    for call in calls:
        pending = call.view.pending
        if (schema := _make_schema(call)) and (message := _make_message(call)):
            key = digest([pending.approval_id, pending.run, pending.question, pending.digest])
            forms[key] = call, ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))
    return forms


def read_answers(
    forms: Mapping[str, tuple[OpenCall, ElicitRequest]], responses: Mapping[str, Any]
) -> dict[str, AnswerBody]:
    """Return the answers that the responses to forms contain, by the ID of the call.

    Responses to unknown forms are ignored: their calls have been answered or have changed. So are those of people who
    closed the form.

    Raises:
        InvalidAnswer: A response does not fit its form.
    """
    answers = {}
    for key in set(responses) & set(forms):
        call = forms[key][0]
        try:
            result = ElicitResult.model_validate(responses[key])
        except ValidationError:
            raise InvalidAnswer(f"The response to {key!r} is not a result of an elicitation.") from None
        if result.action != "cancel":
            answers[call.view.id] = _read_answer(call, result)
    return answers


def _make_schema(call: OpenCall) -> JsonObject | None:
    if "approve" in call.actions and call.view.pending.kind in APPROVED:
        properties: JsonObject = {"confirm": {"type": "boolean", "title": "Approve"}, "comment": _TEXT}
        needed = ["confirm", "comment"] if words.needs_comment(call.view.pending) else ["confirm"]
        return {"type": "object", "properties": properties, "required": needed}
    if "respond" not in call.actions or words.needs_comment(call.view.pending):
        return None
    schema = call.view.pending.response_schema
    if schema is None:
        return {"type": "object", "properties": {"result": _TEXT}, "required": ["result"]}
    properties = schema.get("properties") or {}
    if not properties or any(
        not isinstance(part, dict) or part.get("type") not in PRIMITIVES for part in properties.values()
    ):
        return None
    fields = {name: {key: part[key] for key in KEYWORDS if key in part} for name, part in properties.items()}
    return {"type": "object", "properties": fields, "required": list(schema.get("required") or ())}


_TEXT = {"type": "string"}


def _make_message(call: OpenCall) -> str:
    """Return the text of a form, or an empty string if it could not show all arguments."""
    pending = call.view.pending
    args = json.dumps(hide_named_secrets(pending.args), ensure_ascii=False)
    if call.view.unread or len(args) > MAX_ARGS_CHARS:
        return ""
    lines = [pending.title or "", words.hint(pending), f"{pending.agent} calls {pending.tool} with {args}"]
    return "\n".join(text_safety.format_line(line, 2 * MAX_ARGS_CHARS) for line in lines if line)


def _read_answer(call: OpenCall, result: ElicitResult) -> AnswerBody:
    content = dict(result.content or {})
    shown: dict[str, Any] = {"digest": call.view.pending.digest, "question": call.view.pending.question}
    if call.view.pending.kind not in APPROVED and result.action == "accept":
        return AnswerBody(action="respond", response=content, **shown)
    confirmed, comment = content.get("confirm"), content.get("comment")
    if result.action == "decline":
        confirmed = False
    if not isinstance(confirmed, bool):
        raise InvalidAnswer("The field `confirm` must be true or false.")
    return AnswerBody(action="approve" if confirmed else "reject", comment=str(comment) if comment else None, **shown)

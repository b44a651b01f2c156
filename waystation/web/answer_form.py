"""What a form of answers says: read, and looked at before anything is sent."""

import json
from collections.abc import Sequence

from waystation.core.answer import Action, PendingCall
from waystation.core.payload import JsonObject
from waystation.presentation import text_safety
from waystation.web import forms
from waystation.web.answering import MAX_COMMENT
from waystation.web.call_view import Looked, around, decisions
from waystation.web.forms import Field
from waystation.web.posted import Posted

NO_COMMENT = ("claim", "release", "progress")
"""What settles nothing, so that no policy asks why."""


class Incomplete(Exception):
    """A form lacks something, or has something that is not what it should be."""

    def __init__(self, message: str, fields: Sequence[Field] | None = None) -> None:
        self.fields = fields
        super().__init__(message)


def answer_in(form: Posted, looked: Looked) -> tuple[Action, JsonObject]:
    """Return what a form says.

    Raises:
        Incomplete: It lacks something.
    """
    wanted, call = form.one("action"), looked.pending
    remember = wanted == "approve-and-remember"
    action = next(
        (
            each
            for each in (*decisions(looked.state), *around(looked.state))
            if each != "view" and each == wanted.partition("-")[0]
        ),
        None,
    )
    if action is None or (remember and (call.policy is None or call.policy.remember is None)):
        raise Incomplete("The call does not take this answer.")
    comment = form.text("comment").strip()
    if len(comment) > MAX_COMMENT:
        raise Incomplete(f"The comment has {len(comment):,} characters; at most {MAX_COMMENT:,} are taken.")
    if not comment and needs_comment(call) and action not in NO_COMMENT:
        raise Incomplete("This answer needs a comment.")
    fields: JsonObject = {"comment": comment, "remember": remember}
    if action == "edit":
        fields["args"] = object_in(form.one("args"))
        if fields["args"] is None:
            raise Incomplete("The arguments are missing; edit them again.")
    if action in ("respond", "progress"):
        fields["response"] = _response(form, call, action)
        if action == "progress":
            fields["wake"] = "wake" in form
    if action == "approve" and call.kind == "budget":
        fields["response"] = _grant(form, call)
    if action == "approve" and call.kind == "confirmation" and form.text("payload").strip():
        try:
            fields["response"] = forms.object_of(form.text("payload"))
        except ValueError as error:
            raise Incomplete(f"What goes with the approval: {error}") from None
    return action, fields


def _response(form: Posted, call: PendingCall, action: Action) -> JsonObject:
    drawn = response_fields(call)
    if action == "respond" and drawn:
        values, again = forms.read(drawn, form)
        if any(field.error for field in again):
            raise Incomplete("Some fields need another look.", again)
        return values
    text = form.text("response" if action == "respond" else "news")
    if not text.strip():
        raise Incomplete("Write what the agent is told.")
    try:
        return forms.said(text)
    except ValueError as error:
        raise Incomplete(str(error)) from None


def _grant(form: Posted, call: PendingCall) -> JsonObject | None:
    given: JsonObject = {}
    for limit in call.args.get("limits") or ():
        if amount := form.one(f"limit.{limit}").strip():
            try:
                given[limit] = json.loads(amount)
            except ValueError:
                raise Incomplete(f"{text_safety.line(str(limit))}: write a number, such as 5000.") from None
    return given or None


def response_fields(call: PendingCall) -> list[Field]:
    """Return the fields of the response that a call waits for, when its author says which there are."""
    return forms.of_schema(call.response_schema) or [] if call.response_schema else []


def needs_comment(call: PendingCall) -> bool:
    """Whether whoever decides has to say why."""
    return call.policy is not None and call.policy.comment


def object_in(text: str) -> JsonObject | None:
    """Return the JSON object in a hidden field; None when somebody has changed it into something else."""
    try:
        return forms.object_of(text)
    except ValueError:
        return None

"""Slack's blocks for calls, and the forms that people fill in.

Text from models, tools and people is only in `plain_text` and `rich_text`, which Slack does not search for markup, with
invisible characters escaped.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from waystation.core.actions import Action
from waystation.core.payload import JsonObject
from waystation.core.secrets import has_named_secret
from waystation.interfaces.chat.chat_store import Account
from waystation.presentation import text_safety, words
from waystation.web import forms
from waystation.web.call_answers import CallView
from waystation.web.forms import Form
from waystation.web.paths import format_call_path

BLOCK_CHARS, HEADER_CHARS, BUTTON_CHARS = 3_000, 150, 2_000
"""Slack's limits for a block of text, a header, and the value of a button."""
MAX_PARTS = 2
"""Maximum number of blocks with arguments. Longer arguments have to be read, and the call answered, in the inbox.

Slack refuses messages whose blocks have together more than about 13,000 characters.
"""
TEXT_CHARS = 1_500
"""Maximum length of other texts in a message."""
DIRECT: tuple[Action, ...] = ("approve", "reject")
ANSWER, MORE, LINK, CODE = "answer", "more", "link", "code"
"""The `action_id` of buttons, and the `callback_id` of modals."""
NOTICE = "A call is waiting for approval."
"""The text of push notifications. Slack would look for markup in it, so it has nothing from the call."""


def make_message(view: CallView, inbox: str) -> list[JsonObject]:
    """Return the blocks of a message about a call, whether or not it is still open."""
    call, is_open = view.pending, view.standing == "open"
    title = _clip(text_safety.format_line(call.title or call.tool, HEADER_CHARS), HEADER_CHARS)
    agent, tool, person = map(text_safety.format_line, (call.agent, call.tool, call.requester or call.user_id))
    lines = [f"{agent} calls {tool}, for {person}."]
    if is_open:
        lines.append(f"waits for: {words.format_approvers(call)}")
        lines += [f"{label}: {text}" for label, text in words.list_terms(call, options=False)]
        lines.append(f"time left: {words.format_time_left(call)} when this was posted or changed")
    if hint := words.hint(call):
        lines.append(str(text_safety.format_text(hint)))
    arguments = text_safety.format_value(call.args, head=MAX_PARTS * BLOCK_CHARS + 1, tail=0)
    text, remarks = str(arguments), list(arguments.remarks)
    is_complete = len(text) <= MAX_PARTS * BLOCK_CHARS and not view.unread
    if not is_complete:
        remarks.append("These are not the complete arguments. Open the call in the inbox to read and answer it.")
    parts = [text[start : start + BLOCK_CHARS] for start in range(0, len(text), BLOCK_CHARS)]
    blocks: list[JsonObject] = [{"type": "header", "text": _plain(title)}, make_section("\n".join(lines), TEXT_CHARS)]
    blocks += [_preformatted(part) for part in parts[:MAX_PARTS]]
    blocks += [make_section(" ".join(remarks), TEXT_CHARS)] if remarks else []
    if not is_open:
        return [*blocks, make_section(view.decision, TEXT_CHARS)]
    return [*blocks, {"type": "actions", "elements": list(_make_buttons(view, inbox, is_complete=is_complete))}]


def make_short_message(view: CallView, inbox: str) -> list[JsonObject]:
    """Return the blocks of a message without anything from the call, for one that Slack does not show."""
    text = "Slack cannot show this call. Open it in the inbox." if view.standing == "open" else "This call is decided."
    buttons = list(_make_buttons(view, inbox, is_complete=False))
    return [make_section(text), {"type": "actions", "elements": buttons}]


def _make_buttons(view: CallView, inbox: str, *, is_complete: bool) -> Iterator[JsonObject]:
    value = json.dumps({"id": view.id, "version": view.version})
    is_refused = view.pending.policy is not None and not view.pending.policy.chat
    if is_complete and not is_refused and len(value) <= BUTTON_CHARS:
        styles = {"approve": "primary", "reject": "danger"}
        for action in DIRECT if not words.needs_comment(view.pending) else ():
            if action in view.decisions:
                yield _button(f"{ANSWER}:{action}", action.capitalize(), value=value, style=styles[action])
        if list_offered(view):
            yield _button(MORE, "More…", value=value)
    yield _button("open", "Open in the inbox", url=f"{inbox.rstrip('/')}{format_call_path(view.id)}")


def list_offered(view: CallView) -> list[Action]:
    """Return the answers that people can give in the modal. Others need the forms of the inbox."""
    offers = {
        "approve": True,
        "reject": True,
        "edit": len(_format_editable(view)) <= BLOCK_CHARS and not has_named_secret(view.pending.args),
        "respond": not view.response_fields(),
    }
    return [action for action in view.decisions if offers.get(action)]


def make_modal(view: CallView, reference: JsonObject) -> JsonObject:
    """Return the modal with which a person comments, edits or responds."""
    offered, lines = list_offered(view), {"type": "plain_text_input", "multiline": True}
    if not offered:
        return make_notice("Answer this call in the inbox.")
    options = [{"text": _plain(action.capitalize()), "value": action} for action in offered]
    inputs = [
        _input("action", "Answer", {"type": "radio_buttons", "options": options}),
        _input("comment", "Comment", lines, optional=True),
    ]
    if "edit" in offered:
        args = {**lines, "initial_value": _format_editable(view)}
        inputs.append(_input("args", "Arguments, if you edit them", args, optional=True))
    if "respond" in offered:
        inputs.append(_input("response", "Response, if you respond", lines, optional=True))
    return {
        "type": "modal",
        "callback_id": ANSWER,
        "title": _plain("Answer"),
        "submit": _plain("Send"),
        "close": _plain("Close"),
        "private_metadata": json.dumps(reference),
        "blocks": inputs,
    }


def make_notice(text: str) -> JsonObject:
    """Return a modal with a text."""
    return {"type": "modal", "title": _plain("Waystation"), "close": _plain("Close"), "blocks": [make_section(text)]}


def make_code_modal(channel: str) -> JsonObject:
    """Return the modal in which a person types the code that the page shows."""
    entry = {"type": "plain_text_input", "max_length": 20}
    return {
        "type": "modal",
        "callback_id": CODE,
        "title": _plain("Link your account"),
        "submit": _plain("Link"),
        "private_metadata": channel,
        "blocks": [_input(CODE, "The code that the page in your browser shows", entry)],
    }


def make_link_request(text: str, url: str) -> list[JsonObject]:
    """Return the blocks with which a person links an account."""
    host = urlsplit(url).netloc
    buttons = [_button(LINK, "Log in", url=url, style="primary"), _button(CODE, "Enter code")]
    text = f"{text} Log in at {host}, and then enter the code that the page shows. This message works for 10 minutes."
    return [make_section(text), {"type": "actions", "elements": buttons}]


def read_user(body: JsonObject) -> Account:
    """Return the user that a request of Slack is about, as Slack has signed it. Names are for people only."""
    user, team = body["user"], body["team"]
    return Account(
        workspace=team["id"],
        workspace_name=team.get("domain") or team["id"],
        user=user["id"],
        user_name=user.get("username") or user.get("name") or user["id"],
    )


def read_form(state: JsonObject) -> Form:
    """Return what a person filled in, as the web application's forms have it."""
    values = {}
    for block_id, elements in state["values"].items():
        (element,) = elements.values()
        chosen = element.get("selected_option")
        values[block_id] = (chosen["value"] if chosen else element.get("value")) or ""
    return Form(values)


def _format_editable(view: CallView) -> str:
    return forms.format_json(view.pending.args)


def _input(block_id: str, label: str, element: JsonObject, *, optional: bool = False) -> JsonObject:
    element = {**element, "action_id": "value"}
    return {"type": "input", "block_id": block_id, "label": _plain(label), "element": element, "optional": optional}


def make_section(text: str, length: int = BLOCK_CHARS) -> JsonObject:
    """Return a block with a text."""
    return {"type": "section", "text": _plain(_clip(text, length))}


def _button(action_id: str, text: str, **fields: Any) -> JsonObject:
    return {"type": "button", "action_id": action_id, "text": _plain(text), **fields}


def _preformatted(text: str) -> JsonObject:
    element = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "elements": [element]}


def _plain(text: str) -> JsonObject:
    return {"type": "plain_text", "text": text or " ", "emoji": False}  # with `emoji`, `:x:` would become a picture


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"

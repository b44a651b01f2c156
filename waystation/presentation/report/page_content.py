"""What the page of a report says, put in words."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from waystation.core.answer import usual_hint
from waystation.core.call import CallState
from waystation.core.payload import JsonObject
from waystation.presentation import terminal, text_safety, timeline, timeline_drawing
from waystation.presentation.call_history import story
from waystation.presentation.policy_terms import terms
from waystation.presentation.report import formatting
from waystation.presentation.report.prompt_summary import Content, Part
from waystation.presentation.report.run_summary import Change, ModelCall, Told

if TYPE_CHECKING:
    from waystation.presentation.report.invocation_report import Report

FIRST, LAST = 100, 500
"""Events that are told of a long invocation; of a called agent a fifth of each."""
GROUP = 100
"""Rows that are folded together, when there are more."""
MODELS = 300
CHANGES = 200
"""Of very many model calls and changes of state the last are told."""
DRAWN = 40
"""Rows of the picture that is open at once; all of more are behind a summary."""
CALLED = 30
"""Called agents that are told in full."""
ROOM = 600_000
"""Characters of all texts together, roughly."""
HEAD, TAIL = 1_500, 500
"""Characters of one text."""
LINES = 4
"""Lines of an event that are seen before it is opened."""

Marked = Callable[[str, int, int], Any]
"""Returns a text as HTML, so many characters of its beginning and its end."""


class View:
    """What the template of a report is given."""

    def __init__(self, report: "Report", marked: Marked) -> None:
        self._report = report
        self._marked = marked
        values = sum(_told(each) for each in itertools.islice(_all(report), CALLED + 1))
        each = max(150, ROOM // max(values, 1))
        self._head, self._tail = min(HEAD, each * 3 // 4), min(TAIL, each // 4)
        self._left = CALLED

    def whole(self) -> JsonObject:
        """Return all of it."""
        return {**self._one(self._report, "", FIRST, LAST), "asof": formatting.moment(self._report.now)}

    def _one(self, report: "Report", key: str, first: int, last: int) -> JsonObject:
        log = report.recording.log
        models = report.telling.models[-MODELS:]
        return {
            "id": text_safety.line(report.recording.id, 300),
            "key": key,
            "agent": text_safety.line(log.agent),
            "message": self._text(report.message),
            "status": report.status,
            "status_text": {"waiting": "waits for a person", "timed_out": "timed out"}.get(
                report.status, report.status
            ),
            "reason": self._text(report.reason),
            "result": self._text(str(((report.outcome and report.outcome.result) or {}).get("text") or "")),
            "facts": formatting.facts(report),
            "lacking": [self._text(each) for each in dict.fromkeys(report.recording.lacking.values())][:3],
            "picture": _picture(report, key),
            "models": [self._model(each, models, report.began, key) for each in models],
            "models_left_out": len(report.telling.models) - len(models),
            "tokens": formatting.tokens(report),
            "changed": [each for each in (_redefined(model, key) for model in models) if each],
            "events": self._events(report, key, first, last),
            "changes": self._changes(report, key),
            "state": self._value(formatting.unsecret(log.state)) if log.state else None,
            "people": [self._asked(report, call) for call in report.asked],
            "troubles": self._troubles(report, key),
            "called": self._called(report, key),
            "earlier": bool(log.input and log.input.session),
        }

    def _called(self, report: "Report", key: str) -> list[JsonObject]:
        told: list[JsonObject] = []
        for id, each in report.called.items():
            if self._left > 0:
                self._left -= 1
                told.append(self._one(each, f"{key}{id}-", FIRST // 5, LAST // 5))
        return told

    # Texts.

    def _text(self, given: str) -> Any:
        return self._marked(given.replace("\r\n", "\n"), self._head, self._tail)

    def _value(self, given: Any) -> Any:
        text = json.dumps(given, ensure_ascii=False)
        if len(text) > 100:
            text = json.dumps(given, ensure_ascii=False, indent=2)
        return self._marked(text, self._head, self._tail)

    # Events.

    def _events(self, report: "Report", key: str, first: int, last: int) -> JsonObject:
        events = report.telling.events
        left_out = max(0, len(events) - first - last)
        told = [*events[:first], *events[first + left_out :]] if left_out else events
        rows = [self._event(each, report, key) for each in told]
        groups = [rows[at : at + GROUP] for at in range(0, len(rows), GROUP)]
        return {
            "count": len(events),
            "before": report.recording.events_before,
            "left_out": left_out,
            "left_after": events[first - 1].number if left_out else 0,
            "groups": groups,
        }

    def _event(self, told: Told, report: "Report", key: str) -> JsonObject:
        event = formatting.discreet(told.event)
        lines = list(terminal.lines_of(event)) or list(formatting.noted(event.custom_metadata or {}))
        later = set(event.long_running_tool_ids or ())
        parts = [self._part(part, later) for part in (event.content or {}).get("parts") or ()]
        return {
            "number": told.number,
            "key": key,
            "at": formatting.offset(event.timestamp - report.began),
            "moment": formatting.moment(event.timestamp),
            "lines": [
                {"kind": line.kind, "who": text_safety.line(line.who, 60), "text": text_safety.line(line.text, 160)}
                for line in lines[:LINES]
            ],
            "more": max(0, len(lines) - LINES),
            "model_call": told.model_call,
            "parts": parts,
            "changes": [self._change(each) for each in told.changes],
            "more_facts": self._more(told),
        }

    def _more(self, told: Told) -> list[tuple[str, Any]]:
        event = told.event
        found: list[tuple[str, Any]] = [("author", self._text(event.author)), ("id", self._text(event.id))]
        actions = event.actions.model_dump(
            mode="json", by_alias=True, exclude_defaults=True, exclude={"state_delta", "removed_keys"}
        )
        for name, value in (
            ("branch", event.branch),
            ("finished", event.finish_reason),
            ("error", ": ".join(filter(None, (event.error_code, event.error_message)))),
            ("actions", actions),
            ("told besides", event.custom_metadata),
            ("grounding", event.grounding_metadata),
            ("citations", event.citation_metadata),
        ):
            if value:
                found.append(
                    (name, self._text(value) if isinstance(value, str) else self._value(formatting.unsecret(value)))
                )
        return found

    def _part(self, part: JsonObject, later: Iterable[str] = ()) -> JsonObject:
        """Return one part of a content: what it is, and what it says."""
        if text := part.get("text"):
            return {"kind": "thought" if part.get("thought") else "text", "title": "", "body": self._text(str(text))}
        if call := part.get("functionCall"):
            about = ", long-running" if call.get("id") in later else ""
            title = f"calls {text_safety.line(str(call.get('name')))}{formatting.numbered(call)}{about}"
            return {"kind": "call", "title": title, "body": self._value(formatting.unsecret(call.get("args") or {}))}
        if response := part.get("functionResponse"):
            title = f"{text_safety.line(str(response.get('name')))} answers{formatting.numbered(response)}"
            return {
                "kind": "response",
                "title": title,
                "body": self._value(formatting.unsecret(response.get("response"))),
            }
        names = ", ".join(text_safety.line(name) for name in part)
        return {"kind": "other", "title": names, "body": self._value(part)}

    # State.

    def _changes(self, report: "Report", key: str) -> list[JsonObject]:
        changes = [
            {"number": told.number, "key": key, **self._change(each)}
            for told in report.telling.events
            for each in told.changes
        ]
        return changes[-CHANGES:]

    def _change(self, change: Change) -> JsonObject:
        return {
            "name": self._text(change.key),
            "before": self._value(terminal.unsecret(change.key, change.before[0])) if change.before else None,
            "after": self._value(terminal.unsecret(change.key, change.after[0])) if change.after else None,
        }

    # Models.

    def _model(self, call: ModelCall, calls: Sequence[ModelCall], began: float, key: str) -> JsonObject:
        reply = call.reply
        usage = reply.usage if reply else None
        largest = max((each.reply.usage.total for each in calls if each.reply and each.reply.usage), default=0)
        wide = 100 / largest if largest else 0.0
        bars = []
        at = 0.0
        if usage:
            cached = min(usage.cached_tokens, usage.prompt_tokens)
            for kind, count in (
                ("cached", cached),
                ("prompt", usage.prompt_tokens - cached),
                ("output", usage.output_tokens + usage.thoughts_tokens),
            ):
                bars.append({"kind": kind, "x": f"{at:.1f}%", "width": f"{count * wide:.1f}%"})
                at += count * wide
        return {
            "number": call.number,
            "key": key,
            "agent": text_safety.line(call.agent, 60),
            "model": text_safety.line(reply.model or reply.model_version or "", 60) if reply else "",
            "at": formatting.offset(call.began - began),
            "took": text_safety.duration(call.ended - call.began) if call.ended is not None else "so far",
            "tokens": f"{usage.total:,}" if usage else "",
            "usage": formatting.usage(usage.model_dump()) if usage else "",
            "bars": bars,
            "cost": formatting.money(call.cost) if call.cost is not None else "",
            "attempts": reply.attempt if reply and reply.attempt > 1 else 0,
            "problem": self._text(formatting.problem(call)),
            "changed": _redefined(call, key),
            "definition": call.definition[:12],
            "wrap_up": self._text(reply.wrap_up) if reply and reply.wrap_up else None,
            "prompt": self._prompt(call, key),
        }

    def _prompt(self, call: ModelCall, key: str) -> JsonObject | None:
        if call.prompt is None:
            return None
        prompt = call.prompt
        told = prompt.then[-GROUP:]
        first = prompt.length - len(told)
        return {
            "length": prompt.length,
            "like": prompt.like if prompt.same else None,
            "same": prompt.same,
            "then": [self._content(each, index, key) for index, each in enumerate(told, first)],
            "left_out": max(0, len(prompt.then) - GROUP),
        }

    def _content(self, content: Content, index: int, key: str) -> JsonObject:
        parts = [self._shown_part(part) for part in content.parts]
        return {"index": index, "role": text_safety.line(content.role, 20), "parts": parts}

    def _shown_part(self, part: Part) -> JsonObject:
        if part.event is None:
            return {"event": None, **self._part(part.content)}
        lines = terminal.lines_of(formatting.quiet(part.content))
        said = next((f"{line.who}{line.text}" for line in lines), "")
        return {"event": part.event, "line": text_safety.line(said.removeprefix(": "), 110)}

    # People, and what went wrong.

    def _asked(self, report: "Report", call: CallState) -> JsonObject:
        log = report.recording.log
        given = log.input
        pending = call.pending(log.invocation_id, given.user_id if given else "", None)
        return {
            "title": text_safety.call(call.name, call.args, 300),
            "id": text_safety.line(call.id),
            "agent": text_safety.line(call.agent),
            "waits": call.waiting and not log.ended,
            "hint": self._text(pending.hint) if pending.hint not in ("", usual_hint(call.name)) else None,
            "args": self._value(formatting.unsecret(call.args)),
            "edited": self._value(formatting.unsecret(call.shown)) if call.shown is not None else None,
            "terms": [(label, text_safety.line(text, 500)) for label, text in terms(pending)],
            "deadline": formatting.moment(call.deadline) if call.deadline else "",
            "decision": formatting.decision(call),
            "story": [{"at": at, "text": text} for at, text in story(log, call)],
        }

    def _troubles(self, report: "Report", key: str) -> list[JsonObject]:
        found: list[JsonObject] = []
        for each in report.attempts:
            if each.count > 1 or each.failure:
                why = terminal.failure(each.failure) if each.failure else ""
                end = "all of them failed" if each.lost else "the last succeeded" if each.count > 1 else ""
                tries = f"{each.count} attempts, {end}" if each.count > 1 else "failed"
                found.append(
                    {
                        "what": f"{text_safety.line(each.type)} ({text_safety.line(each.activity)})",
                        "how": tries,
                        "why": self._text(why),
                        "event": each.event_id,
                    }
                )
        for call in report.recording.log.calls.values():
            if call.outcome and call.outcome.error_type:
                how = f"{text_safety.line(call.outcome.error_type)}; the model was told"
                tool = f"{text_safety.line(call.agent)}: {text_safety.line(call.name)}"
                found.append(
                    {
                        "what": f"{tool} ({text_safety.line(call.id)})",
                        "how": how,
                        "why": self._text(str((call.outcome.response or {}).get("error") or "")),
                        "event": None,
                    }
                )
        for id, text in report.failed_tasks:
            found.append({"what": "a workflow task", "how": "failed", "why": self._text(text), "event": id})
        return found[-LAST:]


def _all(report: "Report") -> "Iterable[Report]":
    yield report
    for each in report.called.values():
        yield from _all(each)


def _told(report: "Report") -> int:
    """Return about how many texts are shown of one invocation."""
    return min(len(report.telling.events), FIRST + LAST) + 2 * min(len(report.telling.models), MODELS)


def _picture(report: "Report", key: str) -> JsonObject | None:
    rows = list(report.rows(key))
    if not rows:
        return None
    times, changes = timeline.marks(report.recording.events)
    drawn = rows[-timeline.MAX_ROWS :]
    return {
        "whole": timeline_drawing.picture(drawn, times, changes, f"-{key}all"),
        "lanes": timeline_drawing.lanes(rows, times, changes, f"-{key}lanes") if len(rows) > DRAWN else None,
        "left_out": len(rows) - len(drawn),
        "count": len(rows),
    }


def _redefined(call: ModelCall, key: str) -> JsonObject | None:
    if call.defined_before is None:
        return None
    number, digest = call.defined_before
    digests = {"before": digest[:12], "after": call.definition[:12]}
    return {"agent": text_safety.line(call.agent, 60), "first": number, "then": call.number, "key": key, **digests}

"""A report as one HTML page, which holds all that it needs and asks nothing of anybody.

However long the invocation was, and whatever it says, the page stays small: the more there is to tell, the less of
each text is shown, with its length; and of very many events the first and the last.
"""

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import waystation.presentation
from waystation.core import DEFAULT_USER, CallState, Event, JsonObject, PendingCall, usual_hint
from waystation.presentation import terminal, text_safety, timeline
from waystation.presentation.call_history import decision, story
from waystation.presentation.html_time import moment
from waystation.presentation.policy_terms import terms

if TYPE_CHECKING:
    from waystation.presentation.report.invocation_report import ModelCall, Report

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

HERE = Path(__file__).parent / "templates"
SHARED = Path(waystation.presentation.__file__).parent
ICON = (SHARED / "static" / "icon.svg").read_text()
_ANCHOR = re.compile(r' id="([^"]*)"')
_LINK = re.compile(r' href="#([^"]*)"')
"""Those that lead to what is left out lead nowhere."""
_PIECES = {"plain": "{}", "gap": '<em class="gap">{}</em>', "escaped": '<mark class="escaped">{}</mark>'}


def page(report: "Report") -> str:
    """Return the page of a report."""
    style = _one_line((SHARED / "static" / "style.css").read_text() + (HERE / "report.css").read_text())
    script = (HERE / "report.js").read_text()
    text = _TEMPLATES.get_template("report.html").render(
        style=Markup(style),  # our own files, and so the two below
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        icon="data:image/svg+xml;base64," + base64.b64encode(ICON.encode()).decode(),
        report=report,
        view=View(report),
    )
    anchors = set(_ANCHOR.findall(text))
    return _LINK.sub(lambda link: link[0] if link[1] in anchors else "", text)


def _one_line(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def _allowed(text: str) -> str:
    """Return what a content security policy allows exactly this script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class View:
    """What the templates of a report say of it, with texts short enough for the page to stay small."""

    def __init__(self, report: "Report") -> None:
        self._shown = dict(itertools.islice(_below(report), CALLED + 1))
        """The invocations that are told in full, by what their anchors begin with."""
        share = max(150, ROOM // max(sum(map(_count_texts, self._shown.values())), 1))
        self._head, self._tail = min(HEAD, share * 3 // 4), min(TAIL, share // 4)

    def text(self, given: str) -> Markup:
        """Return what was said, clipped, with what cannot be seen written out."""
        made: list[Any] = []
        room = 2 * (self._head + self._tail)
        for piece in text_safety.pieces_of(given.replace("\r\n", "\n"), self._head, self._tail):
            if len(piece.text) > room:  # what is written out takes six times the room
                left = escape(piece.text[:room])
                made.append(Markup('{}<em class="gap"> … the rest is left out here</em>').format(left))
                break
            room -= len(piece.text)
            made.append(Markup(_PIECES[piece.kind]).format(piece.text))  # one of the three above
        return Markup("").join(made)

    def value(self, given: Any, name: str = "") -> Markup:
        """Return a value as JSON, without what its names say is secret; a short one on one line."""
        shown = terminal.unsecret(name, given)
        text = json.dumps(shown, ensure_ascii=False)
        return self.text(text if len(text) <= 100 else json.dumps(shown, ensure_ascii=False, indent=2))

    def called(self, report: "Report", key: str) -> list[tuple[str, "Report"]]:
        """Return the called agents that are told in full, each with what its anchors begin with."""
        keys = {f"{key}{id}-": each for id, each in report.called.items()}
        return [(below, each) for below, each in keys.items() if below in self._shown]

    def events(self, report: "Report", key: str) -> JsonObject:
        """Return the events that are shown, in groups, and how many are left out after which."""
        events = report.summary.events
        first, last = (FIRST // 5, LAST // 5) if key else (FIRST, LAST)
        left_out = max(0, len(events) - first - last)
        told = [*events[:first], *events[first + left_out :]] if left_out else events
        after = events[first - 1].number if left_out else 0
        groups = [told[at : at + GROUP] for at in range(0, len(told), GROUP)]
        return {"left_out": left_out, "left_after": after, "groups": groups}

    def lines(self, event: Event) -> list[terminal.Line]:
        """Return what an event says, a fact a line, without secrets."""
        actions = event.actions.model_copy(update={"state_delta": unsecret(event.actions.state_delta)})
        shown = event.model_copy(update={"content": unsecret(event.content), "actions": actions})
        notes = event.custom_metadata or {}
        return list(terminal.lines_of(shown)) or [
            terminal.Line("note", "", f"{terminal.safe(name.replace('_', ' '))}: {terminal.short_json(note)}")
            for name, note in notes.items()
        ]

    def facts(self, event: Event) -> Iterator[tuple[str, Markup]]:
        """Yield what else is known of an event, each with a label."""
        actions = event.actions.model_dump(
            mode="json", by_alias=True, exclude_defaults=True, exclude={"state_delta", "removed_keys"}
        )
        texts = {
            "author": event.author,
            "id": event.id,
            "branch": event.branch,
            "finished": event.finish_reason,
            "error": ": ".join(filter(None, (event.error_code, event.error_message))) or None,
        }
        values = {
            "actions": actions,
            "told besides": event.custom_metadata,
            "grounding": event.grounding_metadata,
            "citations": event.citation_metadata,
        }
        yield from ((label, self.text(text or "")) for label, text in texts.items() if text is not None)
        yield from ((label, self.value(value)) for label, value in values.items() if value)

    def changes(self, report: "Report") -> list[tuple[int, JsonObject]]:
        """Return the latest changes of the state, each with the number of its event."""
        return [(told.number, change) for told in report.summary.events for change in told.changes][-CHANGES:]

    def models(self, report: "Report") -> "list[ModelCall]":
        """Return the model calls that are shown: the last of very many."""
        return report.summary.model_calls[-MODELS:]

    def pending(self, report: "Report", call: CallState) -> PendingCall:
        """Return what people were asked."""
        log = report.recording.log
        return call.pending(log.invocation_id, log.state.input.user_id if log.state.input else "", None)

    def troubles(self, report: "Report") -> list[tuple[str, str, Markup, int | None]]:
        """Return what went wrong: what, how, why, and the number of the history event."""
        line = text_safety.line
        found: list[tuple[str, str, str, int | None]] = []
        for each in report.attempts:
            if each.count > 1 or each.failure:
                end = "all of them failed" if each.lost else "the last succeeded"
                how = f"{each.count} attempts, {end}" if each.count > 1 else "failed"
                why = terminal.failure(each.failure) if each.failure else ""
                found.append((f"{line(each.type)} ({line(each.activity)})", how, why, each.event_id))
        for call in report.recording.log.state.calls.values():
            if call.outcome and call.outcome.error_type:
                what = f"{line(call.agent)}: {line(call.name)} ({line(call.id)})"
                why = str((call.outcome.response or {}).get("error") or "")
                found.append((what, f"{line(call.outcome.error_type)}; the model was told", why, None))
        found += [("a workflow task", "failed", text, number) for number, text in report.failed_tasks]
        return [(what, how, self.text(why), number) for what, how, why, number in found[-LAST:]]


def _below(report: "Report", key: str = "") -> "Iterator[tuple[str, Report]]":
    """Yield a report and those on called agents, each with what its anchors begin with."""
    yield key, report
    for id, each in report.called.items():
        yield from _below(each, f"{key}{id}-")


def _count_texts(report: "Report") -> int:
    """Return about how many texts are shown of one invocation."""
    summary = report.summary
    return min(len(summary.events), FIRST + LAST) + 2 * min(len(summary.model_calls), MODELS)


def figures(report: "Report") -> list[tuple[str, str]]:
    """Return the figures of an invocation, each with a label."""
    log, histories = report.recording.log, report.recording.histories
    given, spent = log.state.input, log.state.used.spent
    fork = given.fork if given else None
    agents = sum(call.call.kind == "agent" for call in log.state.calls.values())
    runs = f" in {len(histories)} runs" if len(histories) > 1 else ""
    found = [
        ("began", date(report.began)),
        ("took" if report.ended else "so far", text_safety.duration(report.duration_s)),
        ("at work", text_safety.duration(spent.working_s)),
        ("waited for people", text_safety.duration(report.waited_s) if report.asked else ""),
        ("model calls", count(len(report.summary.model_calls))),
        ("tool calls", count(spent.tool_calls)),
        ("tokens", count(spent.total_tokens)),
        ("cost", cost(report) if spent.total_tokens else ""),
        ("called agents", count(agents)),
        ("user", text_safety.line(given.user_id) if given and given.user_id != DEFAULT_USER else ""),
        ("session", text_safety.line(given.session_id or "") if given else ""),
        ("history", f"{sum(len(each.events) for each in histories):,} events{runs}"),
        ("goes on from", f"{text_safety.line(fork.invocation_id)}, event {fork.event}" if fork else ""),
    ]
    return [(label, text) for label, text in found if text]


def picture(report: "Report", key: str) -> JsonObject | None:
    """Return the timeline; None when nothing took any time."""
    rows, events = list(report.rows(key)), report.recording.events
    if not rows:
        return None
    drawn = rows[-timeline.MAX_ROWS :]
    return {
        "whole": timeline.picture(drawn, events, f"-{key}all"),
        "lanes": timeline.lanes(rows, events, f"-{key}lanes") if len(rows) > DRAWN else None,
        "left_out": len(rows) - len(drawn),
        "count": len(rows),
    }


def token_bars(call: "ModelCall", calls: "Sequence[ModelCall]") -> Iterator[dict[str, str]]:
    """Yield the bars of a call's tokens; those of the call with the most tokens take the whole width."""
    if not (call.reply and call.reply.usage):
        return
    usage = call.reply.usage
    largest = max(each.reply.usage.total for each in calls if each.reply and each.reply.usage)
    wide = 100 / largest if largest else 0.0
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    counts = {"cached": cached, "prompt": usage.prompt_tokens - cached}
    at = 0.0
    for kind, number in {**counts, "output": usage.output_tokens + usage.thoughts_tokens}.items():
        yield {"kind": kind, "x": f"{at:.1f}%", "width": f"{number * wide:.1f}%"}
        at += number * wide


def count(number: int) -> str:
    """Return a number; nothing for none."""
    return f"{number:,}" if number else ""


def cost(report: "Report") -> str:
    """Return what it cost; nothing when its budget has no prices."""
    given, spent = report.recording.log.state.input, report.recording.log.state.used.spent
    if not (given and given.budget.prices):
        return ""
    unknown = f", without {', '.join(map(text_safety.line, spent.unpriced))}" if spent.unpriced else ""
    return f"{money(spent.cost)}{unknown}"


def money(amount: float) -> str:
    """Return an amount with four digits, however small it is."""
    return format(Decimal(f"{amount:.4g}"), ",f")


def usage(counts: JsonObject) -> str:
    """Return which tokens there were."""
    reads = {
        "prompt_tokens": "prompt",
        "cached_tokens": "of it cached",
        "output_tokens": "output",
        "thoughts_tokens": "thoughts",
    }
    return ", ".join(f"{text} {counts[name]:,}" for name, text in reads.items() if counts.get(name))


def problem(call: "ModelCall") -> str:
    """Return why a model gave no usable answer."""
    if call.failure:
        return terminal.failure(call.failure)
    reply = call.reply
    return ": ".join(filter(None, (reply.error_code, reply.error_message))) if reply else ""


def hint(call: PendingCall) -> str:
    """Return what the tool's author has people read, when that is more than the usual words."""
    return call.hint if call.hint != usual_hint(call.tool) else ""


def said(part: JsonObject) -> str:
    """Return the first line of a part of a content."""
    first = next((f"{line.who}{line.text}" for line in terminal.lines_of_part(part)), "")
    return text_safety.line(first.removeprefix(": "), 110)


def date(seconds: float) -> str:
    """Return a time with its zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def offset(seconds: float) -> str:
    """Return how long after the beginning something was, to be compared with others."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"+{seconds:.2f} s"
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    return "+" + (f"{days} d " if days else "") + (f"{hours}:" if days or hours else "") + f"{minutes:02}:{rest:02}"


def unsecret(value: Any) -> Any:
    """Return a value without what its names say is secret."""
    return terminal.unsecret("", value)


_TEMPLATES = Environment(
    loader=FileSystemLoader([HERE, SHARED / "templates"]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "cost": cost,
    "count": count,
    "date": date,
    "decision": decision,
    "duration": text_safety.duration,
    "figures": figures,
    "hint": hint,
    "line": text_safety.line,
    "moment": moment,
    "money": money,
    "offset": offset,
    "picture": picture,
    "problem": problem,
    "said": said,
    "terms": terms,
    "unsecret": unsecret,
    "usage": usage,
}
_TEMPLATES.globals |= {"call_line": text_safety.call, "story": story, "token_bars": token_bars}

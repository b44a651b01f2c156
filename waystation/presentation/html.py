"""HTML output: the template environment that all pages share, and the self-contained page of a report.

The page of a report stays small. The longer the invocation, the fewer characters of each text the page shows, and if
there are very many events, it shows only the first and the last ones.
"""

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from waystation.core import DEFAULT_USER, CallState, Event, JsonObject, PendingCall, Usage, hide_named_secrets, summary
from waystation.presentation import terminal, text_safety, timeline, words

if TYPE_CHECKING:
    from waystation.presentation.report import ModelCall, Report

FIRST, LAST = 100, 500
"""How many events to show from the beginning and the end of a long invocation. For called agents, a fifth of each."""
GROUP = 100
"""Maximum number of events in a group. Longer lists are split into groups."""
MODELS = 300
CHANGES = 200
"""Maximum number of model calls (`MODELS`) and state changes (`CHANGES`) to show. The latest ones are shown."""
CALLED = 30
"""Maximum number of called agents, at any depth, to show in full."""
ROOM = 600_000
"""Approximate maximum total length of the text on the page, in characters.

It is divided evenly among the texts, but each text may have at least 150.
"""

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"
_ANCHOR = re.compile(r' id="([^"]*)"')
_LINK = re.compile(r' href="#([^"]*)"')
_NO_ATTRIBUTES = Markup()
_PIECES = {
    "plain": "{}",
    "gap": '<em class="gap">{}</em>',
    "escaped": '<mark class="escaped" title="invisible character">{}</mark>',
}


def make_environment(*folders: Path, **filters: Any) -> Environment:
    """Return a template environment with the shared templates and filters plus the ones passed in."""
    templates = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = {
        "age": format_age,
        "date_moment": format_minute,
        "cost": format_cost,
        "count": format_count,
        "date": format_date,
        "decision": words.decision,
        "draw_timeline": draw_timeline,
        "duration": text_safety.format_duration,
        "figures": list_figures,
        "hint": words.hint,
        "line": text_safety.format_line,
        "moment": format_moment,
        "money": format_money,
        "span": terminal.format_span,
        "offset": format_offset,
        "part_line": format_part,
        "problem": describe_problem,
        "text": format_pieces,
        "unsecret": hide_named_secrets,
        "usage": format_usage,
    }
    templates.filters |= shared | filters
    templates.globals |= {
        "call_line": text_safety.format_call,
        "origin": summary.origin,
        "story": words.story,
        "terms": words.list_terms,
        "token_bars": token_bars,
        "zone": get_zone,
    }
    return templates


def get_zone() -> str:
    """Return the abbreviation of the server's current time zone."""
    return datetime.now(UTC).astimezone().strftime("%Z")


def format_moment(seconds: float) -> Markup:
    """Return a `time` element that shows the local time, zone and (except today's) date, with UTC in `datetime`."""
    return _make_time(seconds, terminal.format_time(seconds, zone=True))


def format_minute(seconds: float) -> Markup:
    """Return a `time` element that shows the local date and time to the minute, with UTC in `datetime`."""
    return _make_time(seconds, terminal.format_date(seconds))


def format_age(seconds: float, now: float) -> Markup:
    """Return a `time` element with the time since or until a moment, such as `3 h ago` or `in 2 days`.

    Its title is the local time.
    """
    away = abs(now - seconds)
    span = text_safety.format_duration(max(round(away / 60), 1) * 60)
    text = f"in {span}" if seconds > now else f"{span} ago" if away >= 60 else "just now"
    attributes = Markup(' class="age" title="{}"').format(terminal.format_time(seconds, zone=True))
    return _make_time(seconds, text, attributes)


def _make_time(seconds: float, text: str, attributes: Markup = _NO_ATTRIBUTES) -> Markup:
    exact = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}"{}>{}</time>').format(exact, attributes, text)


def format_pieces(pieces: Iterable[text_safety.Piece]) -> Markup:
    """Return pieces of text as HTML, with escaped characters and gaps highlighted."""
    return Markup("").join(Markup(_PIECES[piece.kind]).format(piece.text) for piece in pieces)  # constants are safe


def render_report(report: "Report", *, prompts: bool = True) -> str:
    """Return the HTML page of a report, with or without the prompts of model calls."""
    css = STATIC / "style.css", STATIC / "recording.css", TEMPLATES / "report.css"
    script, icon = TEMPLATES / "report.js", STATIC / "icon.svg"
    style = "\n".join(line.strip() for file in css for line in file.read_text().splitlines() if line.strip()) + "\n"
    html = _REPORTS.get_template("report.html").render(
        style=Markup(style),  # our own files
        script=Markup(script.read_text()),
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script.read_text())}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        icon="data:image/svg+xml;base64," + base64.b64encode(icon.read_bytes()).decode(),
        report=report,
        view=View(report, prompts=prompts),
        place="",
    )
    anchors = set(_ANCHOR.findall(html))
    # Drop links whose targets the page omits.
    return _LINK.sub(lambda link: link[0] if link[1] in anchors else "", html)


def _allowed(text: str) -> str:
    """Return the content security policy source expression that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class View:
    """The view of a report that its template uses, with long text clipped."""

    def __init__(self, report: "Report", *, prompts: bool = True) -> None:
        self.prompts = prompts
        """Whether the prompts of model calls are shown."""
        self._shown = dict(itertools.islice(_below(report), CALLED + 1))
        """The reports of the invocations that the page shows, by the prefix of their anchors."""
        share = max(150, ROOM // max(sum(map(_count_texts, self._shown.values())), 1))
        self._head = min(text_safety.HEAD, share * 3 // 4)
        self._tail = min(text_safety.TAIL, share // 4)

    def text(self, content: str) -> Markup:
        """Return text as HTML, clipped, with invisible characters escaped."""
        pieces = text_safety.split_pieces(content.replace("\r\n", "\n"), self._head, self._tail)
        return format_pieces(_within(pieces, 2 * (self._head + self._tail)))

    def value(self, content: Any, name: str = "") -> Markup:
        """Return a value as clipped JSON with secrets masked. JSON of up to 100 characters is written on one line."""
        masked = hide_named_secrets(content, name)
        text = json.dumps(masked, ensure_ascii=False)
        return self.text(text if len(text) <= 100 else json.dumps(masked, ensure_ascii=False, indent=2))

    def called(self, report: "Report", key: str) -> list[tuple[str, "Report"]]:
        """Return the reports of the called agents that the page shows, each with the prefix of its anchors."""
        return [(f"{key}{id}-", called) for id, called in report.called.items() if f"{key}{id}-" in self._shown]

    def events(self, report: "Report", key: str) -> JsonObject:
        """Return the events to show, in groups.

        `omitted` is the number of events left out, and `omitted_after` is the number of the event before them.
        """
        events = report.summary.events
        first, last = (FIRST // 5, LAST // 5) if key else (FIRST, LAST)
        omitted = max(0, len(events) - first - last)
        shown = [*events[:first], *events[first + omitted :]] if omitted else events
        after = events[first - 1].number if omitted else 0
        groups = [shown[at : at + GROUP] for at in range(0, len(shown), GROUP)]
        return {"omitted": omitted, "omitted_after": after, "groups": groups}

    def lines(self, event: Event) -> list[terminal.Line]:
        """Return the lines that describe an event or, if there are none, its metadata. Secrets are masked."""
        notes = event.custom_metadata or {}
        return list(terminal.format_event(event)) or [
            terminal.Line("note", "", f"{terminal.escape(name.replace('_', ' '))}: {terminal.clip_json(note)}")
            for name, note in notes.items()
        ]

    def facts(self, event: Event) -> Iterator[tuple[str, Markup]]:
        """Yield labeled details of an event that its lines do not show."""
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
            "metadata": event.custom_metadata,
            "grounding": event.grounding_metadata,
            "citations": event.citation_metadata,
        }
        yield from ((label, self.text(text or "")) for label, text in texts.items() if text is not None)
        yield from ((label, self.value(value)) for label, value in values.items() if value)

    def changes(self, report: "Report") -> list[tuple[int, JsonObject]]:
        """Return the latest state changes, at most `CHANGES`, each with the number of its event."""
        return [(event.number, change) for event in report.summary.events for change in event.changes][-CHANGES:]

    def models(self, report: "Report") -> "list[ModelCall]":
        """Return the latest model calls, at most `MODELS`."""
        return report.summary.model_calls[-MODELS:]

    def pending(self, report: "Report", call: CallState) -> PendingCall:
        """Return a call as a pending call, which is the form that approvers see."""
        log = report.recording.log
        return call.pending(log.invocation_id, log.state.input.user_id if log.state.input else "", None)

    def troubles(self, report: "Report") -> list[tuple[str, str, Markup, int | None]]:
        """Return rows for the last errors and retries: what failed, how, why, and the history event ID if known."""
        line = text_safety.format_line
        rows: list[tuple[str, str, str, int | None]] = []
        for attempts in report.attempts:
            if attempts.count > 1 or attempts.failure:
                end = "all of them failed" if attempts.lost else "the last succeeded"
                how = f"{attempts.count} attempts, {end}" if attempts.count > 1 else "failed"
                why = terminal.describe_failure(attempts.failure) if attempts.failure else ""
                rows.append((f"{line(attempts.type)} ({line(attempts.activity)})", how, why, attempts.event_id))
        for call in report.recording.log.state.calls.values():
            if call.outcome and call.outcome.error_type:
                how = f"{line(call.outcome.error_type)}; reported to the model"
                why = str((call.outcome.response or {}).get("error") or "")
                rows.append((f"{line(call.agent)}: {line(call.name)} ({line(call.id)})", how, why, None))
        rows += [("a workflow task", "failed", text, number) for number, text in report.failed_tasks]
        return [(what, how, self.text(why), number) for what, how, why, number in rows[-LAST:]]


def _within(pieces: Iterable[text_safety.Piece], room: int) -> Iterator[text_safety.Piece]:
    """Yield pieces up to a total of `room` characters, counting whole escapes, then a note if text was omitted."""
    for piece in pieces:
        yield replace(piece, text=piece.text[:room])
        room -= len(piece.text)
        if room < 0:
            yield text_safety.Piece(" … the rest is omitted", "gap")
            return


def _below(report: "Report", key: str = "") -> "Iterator[tuple[str, Report]]":
    """Yield a report and the reports of all agents called below it, each with the prefix of its anchors."""
    yield key, report
    for id, called in report.called.items():
        yield from _below(called, f"{key}{id}-")


def _count_texts(report: "Report") -> int:
    """Return the approximate number of long text blocks that the page shows for one invocation."""
    summary = report.summary
    return min(len(summary.events), FIRST + LAST) + 2 * min(len(summary.model_calls), MODELS)


def list_figures(report: "Report") -> list[tuple[str, str]]:
    """Return the key figures of an invocation, as pairs of label and text."""
    log, histories = report.recording.log, report.recording.histories
    started, spent = log.state.input, log.state.used.spent
    fork = started.fork if started else None
    agents = sum(call.call.kind == "agent" for call in log.state.calls.values())
    events = sum(len(history.events) for history in histories)
    rows = [
        ("started", format_date(report.began)),
        ("duration" if report.ended else "so far", text_safety.format_duration(report.duration_s)),
        ("active", text_safety.format_duration(spent.working_s)),
        ("waited for people", text_safety.format_duration(report.waited_s) if report.person_calls else ""),
        ("model calls", format_count(len(report.summary.model_calls))),
        ("tool calls", format_count(spent.tool_calls)),
        ("tokens", format_count(spent.total_tokens)),
        ("cost", format_cost(report) if spent.total_tokens else ""),
        ("called agents", format_count(agents)),
        ("user", text_safety.format_line(started.user_id) if started and started.user_id != DEFAULT_USER else ""),
        ("session", text_safety.format_line(started.session_id or "") if started else ""),
        ("tenant", (started.tenant or "") if started else ""),
        ("history", f"{events:,} events in {len(histories)} run{'s' * (len(histories) > 1)}"),
        ("forked from", f"{text_safety.format_line(fork.invocation_id)}, event {fork.event}" if fork else ""),
    ]
    return [(label, text) for label, text in rows if text]


def draw_timeline(report: "Report", key: str) -> JsonObject | None:
    """Return the drawing of the timeline, or None if there are no spans."""
    return timeline.draw(list(report.rows(key)), report.recording.events, key)


def token_bars(usage: Usage, calls: "Sequence[ModelCall]") -> Iterator[dict[str, str]]:
    """Yield the bars that show a model call's tokens, scaled so that the largest of `calls` fills the whole width."""
    largest = max(call.reply.usage.total for call in calls if call.reply and call.reply.usage)
    wide = 100 / largest if largest else 0.0
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    counts = {"cached": cached, "prompt": usage.prompt_tokens - cached}
    at = 0.0
    for kind, number in {**counts, "output": usage.output_tokens + usage.thoughts_tokens}.items():
        yield {"kind": kind, "x": f"{at:.1f}%", "width": f"{number * wide:.1f}%"}
        at += number * wide


def format_count(number: int) -> str:
    """Format a number with thousands separators. Return an empty string for 0."""
    return f"{number:,}" if number else ""


def format_cost(report: "Report") -> str:
    """Format the cost and name models without a price. Return an empty string if the budget neither has prices
    nor limits the cost."""
    started, spent = report.recording.log.state.input, report.recording.log.state.used.spent
    if not (started and (started.budget.prices or started.budget.max_cost)):
        return ""
    unknown = f", without {', '.join(map(text_safety.format_line, spent.unpriced))}" if spent.unpriced else ""
    return f"{format_money(spent.cost)}{unknown}"


def format_money(amount: float) -> str:
    """Format an amount with four significant digits."""
    return format(Decimal(f"{amount:.4g}"), ",f")


def format_usage(counts: JsonObject) -> str:
    """Format token counts as a list that omits counts of zero."""
    labels = {
        "prompt_tokens": "prompt",
        "cached_tokens": "cached",
        "output_tokens": "output",
        "thoughts_tokens": "thoughts",
    }
    return ", ".join(f"{text} {counts[name]:,}" for name, text in labels.items() if counts.get(name))


def describe_problem(call: "ModelCall") -> str:
    """Return why a model call failed, or an empty string if it did not fail."""
    if call.failure:
        return terminal.describe_failure(call.failure)
    reply = call.reply
    return ": ".join(filter(None, (reply.error_code, reply.error_message))) if reply else ""


def format_part(part: JsonObject) -> str:
    """Return the first line of a content part as shown in a terminal, clipped."""
    first = next((f"{line.who}{line.text}" for line in terminal.format_part(part)), "")
    return text_safety.format_line(first.removeprefix(": "), 110)


def format_date(seconds: float) -> str:
    """Format a time to the second, with date and time zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def format_offset(seconds: float) -> str:
    """Format a number of seconds since the start, such as `+2.50 s` or `+0:03:20`."""
    return f"+{seconds:.2f} s" if 0 <= seconds < 60 else f"+{timedelta(seconds=int(max(0.0, seconds)))}"


_REPORTS = make_environment()

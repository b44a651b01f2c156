"""HTML: what all pages share, and the page of a report, which holds everything it needs.

However long an invocation was, its report stays small: the more there is to show, the less of each text is shown, with
its length; and of very many events the first and the last.
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

from waystation.core import DEFAULT_USER, CallState, Event, JsonObject, PendingCall, Usage
from waystation.presentation import terminal, text_safety, timeline, words

if TYPE_CHECKING:
    from waystation.presentation.report import ModelCall, Report

FIRST, LAST = 100, 500
"""Events shown of a long invocation; of a called agent a fifth of each."""
GROUP = 100
"""Rows folded together, when there are more."""
MODELS = 300
CHANGES = 200
"""Model calls and state changes shown; the last ones."""
CALLED = 30
"""Called agents shown in full."""
ROOM = 600_000
"""Characters of all texts together, roughly."""

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"
_ANCHOR = re.compile(r' id="([^"]*)"')
_LINK = re.compile(r' href="#([^"]*)"')
_PIECES = {
    "plain": "{}",
    "gap": '<em class="gap">{}</em>',
    "escaped": '<mark class="escaped" title="a character that cannot be seen">{}</mark>',
}


def environment(*folders: Path, **filters: Any) -> Environment:
    """Return templates in folders, and those that all pages share; `filters` come on top of the shared ones."""
    templates = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = {"duration": text_safety.duration, "line": text_safety.line, "moment": moment, "text": text}
    templates.filters |= shared | filters
    templates.globals |= {"call_line": text_safety.call, "terms": words.terms, "zone": zone}
    return templates


def zone() -> str:
    """Return the name of the server's time zone now."""
    return datetime.now(UTC).astimezone().strftime("%Z")


def moment(seconds: float) -> Markup:
    """Return a time, in seconds since 1970: in the server's time zone, which is named, and for programs in UTC."""
    exact = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{}</time>').format(exact, terminal.clock(seconds, zone=True))


def text(pieces: Iterable[text_safety.Piece]) -> Markup:
    """Return pieces of a text, with what was escaped and left out set off."""
    return Markup("").join(Markup(_PIECES[piece.kind]).format(piece.text) for piece in pieces)  # one of the three above


def page(report: "Report") -> str:
    """Return the page of a report."""
    css, script, icon = (STATIC / "style.css", TEMPLATES / "report.css"), TEMPLATES / "report.js", STATIC / "icon.svg"
    style = "\n".join(line.strip() for file in css for line in file.read_text().splitlines() if line.strip()) + "\n"
    html = _REPORTS.get_template("report.html").render(
        style=Markup(style),  # our own files, and so the script
        script=Markup(script.read_text()),
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script.read_text())}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        icon="data:image/svg+xml;base64," + base64.b64encode(icon.read_bytes()).decode(),
        report=report,
        view=View(report),
    )
    anchors = set(_ANCHOR.findall(html))
    # Links to what is left out lead nowhere.
    return _LINK.sub(lambda link: link[0] if link[1] in anchors else "", html)


def _allowed(text: str) -> str:
    """Return the source expression by which a content security policy allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class View:
    """What the templates show of a report, with texts short enough for the page to stay small."""

    def __init__(self, report: "Report") -> None:
        self._shown = dict(itertools.islice(_below(report), CALLED + 1))
        """The invocations that are shown in full, by the prefix of their anchors."""
        share = max(150, ROOM // max(sum(map(_count_texts, self._shown.values())), 1))
        self._head = min(text_safety.HEAD, share * 3 // 4)
        self._tail = min(text_safety.TAIL, share // 4)

    def text(self, content: str) -> Markup:
        """Return a text, clipped, with invisible characters escaped."""
        pieces = text_safety.pieces_of(content.replace("\r\n", "\n"), self._head, self._tail)
        return text(_within(pieces, 2 * (self._head + self._tail)))

    def value(self, given: Any, name: str = "") -> Markup:
        """Return a value as JSON, without what its names say is secret; a short one on one line."""
        shown = terminal.unsecret(name, given)
        text = json.dumps(shown, ensure_ascii=False)
        return self.text(text if len(text) <= 100 else json.dumps(shown, ensure_ascii=False, indent=2))

    def called(self, report: "Report", key: str) -> list[tuple[str, "Report"]]:
        """Return the called agents that are told in full, each with what its anchors begin with."""
        return [(f"{key}{id}-", each) for id, each in report.called.items() if f"{key}{id}-" in self._shown]

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
        """Return a call as approvers saw it."""
        log = report.recording.log
        return call.pending(log.invocation_id, log.state.input.user_id if log.state.input else "", None)

    def troubles(self, report: "Report") -> list[tuple[str, str, Markup, int | None]]:
        """Return what went wrong: what, how, why, and the number of the history event."""
        line = text_safety.line
        rows: list[tuple[str, str, str, int | None]] = []
        for attempts in report.attempts:
            if attempts.count > 1 or attempts.failure:
                end = "all of them failed" if attempts.lost else "the last succeeded"
                how = f"{attempts.count} attempts, {end}" if attempts.count > 1 else "failed"
                why = terminal.failure(attempts.failure) if attempts.failure else ""
                rows.append((f"{line(attempts.type)} ({line(attempts.activity)})", how, why, attempts.event_id))
        for call in report.recording.log.state.calls.values():
            if call.outcome and call.outcome.error_type:
                how = f"{line(call.outcome.error_type)}; the model was told"
                why = str((call.outcome.response or {}).get("error") or "")
                rows.append((f"{line(call.agent)}: {line(call.name)} ({line(call.id)})", how, why, None))
        rows += [("a workflow task", "failed", text, number) for number, text in report.failed_tasks]
        return [(what, how, self.text(why), number) for what, how, why, number in rows[-LAST:]]


def _within(pieces: Iterable[text_safety.Piece], room: int) -> Iterator[text_safety.Piece]:
    """Yield pieces up to so many characters: an escaped one takes six times the room."""
    for piece in pieces:
        yield replace(piece, text=piece.text[:room])
        room -= len(piece.text)
        if room < 0:
            yield text_safety.Piece(" … the rest is left out here", "gap")
            return


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
    return timeline.picture(list(report.rows(key)), report.recording.events, key)


def token_bars(usage: Usage, calls: "Sequence[ModelCall]") -> Iterator[dict[str, str]]:
    """Yield the bars of a call's tokens; those of the call with the most tokens take the whole width."""
    largest = max(call.reply.usage.total for call in calls if call.reply and call.reply.usage)
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


def said(part: JsonObject) -> str:
    """Return the first line of a part of a content."""
    first = next((f"{line.who}{line.text}" for line in terminal.lines_of_part(part)), "")
    return text_safety.line(first.removeprefix(": "), 110)


def date(seconds: float) -> str:
    """Return a time with its zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def offset(seconds: float) -> str:
    """Return how long after the start something was."""
    return f"+{seconds:.2f} s" if 0 <= seconds < 60 else f"+{timedelta(seconds=int(max(0.0, seconds)))}"


def unsecret(value: Any) -> Any:
    """Return a value without what its names say is secret."""
    return terminal.unsecret("", value)


_REPORTS = environment(
    cost=cost,
    count=count,
    date=date,
    decision=words.decision,
    figures=figures,
    hint=words.hint,
    money=money,
    offset=offset,
    picture=picture,
    problem=problem,
    said=said,
    unsecret=unsecret,
    usage=usage,
)
_REPORTS.globals |= {"story": words.story, "token_bars": token_bars}

"""HTML output: the template environment that all pages share, and the self-contained page of a report.

The page of a report stays small. The longer the invocation, the fewer characters of each text the page shows, and if
there are very many events, it shows only the first and the last ones.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from waystation.core import summary
from waystation.core.budget import Usage
from waystation.core.contract import Event
from waystation.core.payload import JsonObject
from waystation.core.secrets import hide_named_secrets
from waystation.presentation import terminal, text_safety, words

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
        "count": format_count,
        "date": format_date,
        "decision": words.decision,
        "duration": text_safety.format_duration,
        "cost": words.format_cost,
        "hint": words.hint,
        "line": text_safety.format_line,
        "lines": list_lines,
        "message": format_message,
        "moment": format_moment,
        "money": words.format_money,
        "span": terminal.format_span,
        "offset": format_offset,
        "part_line": format_part,
        "remarks": list_remarks,
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


def format_message(text: str) -> Markup:
    """Return a message as HTML, with the text between backticks as code."""
    pieces = re.split("`([^`]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece for index, piece in enumerate(pieces)
    )


def format_pieces(pieces: Iterable[text_safety.TextPart]) -> Markup:
    """Return pieces of text as HTML, with escaped characters and gaps highlighted."""
    return Markup("").join(Markup(_PIECES[piece.kind]).format(piece.text) for piece in pieces)  # constants are safe


def render_document(template: str, **values: Any) -> str:
    """Return a self-contained page without links to what it omits. It runs no script but its own."""
    css = STATIC / "style.css", STATIC / "recording.css", TEMPLATES / "report.css"
    script, icon = TEMPLATES / "report.js", STATIC / "icon.svg"
    style = "\n".join(line.strip() for file in css for line in file.read_text().splitlines() if line.strip()) + "\n"
    html = _REPORTS.get_template(template).render(
        style=Markup(style),  # our own files
        script=Markup(script.read_text()),
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script.read_text())}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        icon="data:image/svg+xml;base64," + base64.b64encode(icon.read_bytes()).decode(),
        **values,
    )
    anchors = set(_ANCHOR.findall(html))
    # Drop links whose targets the page omits.
    return _LINK.sub(lambda link: link[0] if link[1] in anchors else "", html)


def _allowed(text: str) -> str:
    """Return the content security policy source expression that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class View:
    """How a page shows the texts of a report: with long text clipped, and with or without prompts."""

    def __init__(
        self, texts: int = 1, *, prompts: bool = True, longest: tuple[int, int] = (text_safety.HEAD, text_safety.TAIL)
    ) -> None:
        """Create a view.

        Args:
            texts: Approximate number of long texts on the page, which share its length.
            prompts: Whether the prompts of model calls are shown.
            longest: Number of characters to show of a text at most, from its beginning and from its end.
        """
        self.prompts = prompts
        share = max(150, ROOM // max(texts, 1))
        self._head, self._tail = min(longest[0], share * 3 // 4), min(longest[1], share // 4)

    def text(self, content: str) -> Markup:
        """Return text as HTML, clipped, with invisible characters escaped."""
        pieces = text_safety.split_pieces(content.replace("\r\n", "\n"), self._head, self._tail)
        return format_pieces(_within(pieces, 2 * (self._head + self._tail)))

    def value(self, content: Any, name: str = "") -> Markup:
        """Return a value as clipped JSON with secrets masked. JSON of up to 100 characters is written on one line."""
        masked = hide_named_secrets(content, name)
        text = json.dumps(masked, ensure_ascii=False)
        return self.text(text if len(text) <= 100 else json.dumps(masked, ensure_ascii=False, indent=2))

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


def list_lines(event: Event) -> list[terminal.Line]:
    """Return the lines that describe an event or, if there are none, its metadata. Secrets are masked."""
    return list(terminal.format_event(event)) or [
        terminal.Line("note", "", f"{terminal.escape(name.replace('_', ' '))}: {terminal.clip_json(note)}")
        for name, note in (event.custom_metadata or {}).items()
    ]


def list_remarks(content: object) -> tuple[str, ...]:
    """Return remarks about suspicious content of a text or of a value."""
    safe = text_safety.format_text(content) if isinstance(content, str) else text_safety.format_value(content)
    return safe.remarks


def _within(pieces: Iterable[text_safety.TextPart], room: int) -> Iterator[text_safety.TextPart]:
    """Yield pieces up to a total of `room` characters, counting whole escapes, then a note if text was omitted."""
    for piece in pieces:
        yield replace(piece, text=piece.text[:room])
        room -= len(piece.text)
        if room < 0:
            yield text_safety.TextPart(" … the rest is omitted", "gap")
            return


def token_bars(usage: Usage, largest: int) -> Iterator[dict[str, str]]:
    """Yield the bars that show a model call's tokens, scaled so that `largest` tokens fill the whole width."""
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


def format_usage(counts: JsonObject) -> str:
    """Format token counts as a list that omits counts of zero."""
    labels = {
        "prompt_tokens": "prompt",
        "cached_tokens": "cached",
        "output_tokens": "output",
        "thoughts_tokens": "thoughts",
    }
    return ", ".join(f"{text} {counts[name]:,}" for name, text in labels.items() if counts.get(name))


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

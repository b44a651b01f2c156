"""A report as one HTML page, which holds all that it needs and asks nothing of anybody.

However long the invocation was, and whatever it says, the page stays small: the more there is to tell, the less of
each text is shown, with its length; and of very many events the first and the last.
"""

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import waystation.presentation
from waystation.presentation import text_safety
from waystation.presentation.html_time import moment
from waystation.presentation.report.page_content import View

if TYPE_CHECKING:
    from waystation.presentation.report.invocation_report import Report

HERE = Path(__file__).parent / "templates"
SHARED = Path(waystation.presentation.__file__).parent
ICON = (SHARED / "static" / "icon.svg").read_text()
_TEMPLATES = Environment(
    loader=FileSystemLoader([HERE, SHARED / "templates"]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["moment"] = moment
_ANCHOR = re.compile(r' id="([^"]*)"')
_LINK = re.compile(r' href="#([^"]*)"')
"""Those that lead to what is left out lead nowhere."""


def page(report: "Report") -> str:
    """Return the page of a report."""
    style = _one_line((SHARED / "static" / "style.css").read_text() + (HERE / "report.css").read_text())
    script = (HERE / "report.js").read_text()
    view = View(report, _marked)
    text = _TEMPLATES.get_template("report.html").render(
        style=Markup(style),  # our own files, and so the two below
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        icon="data:image/svg+xml;base64," + base64.b64encode(ICON.encode()).decode(),
        **view.whole(),
    )
    anchors = set(_ANCHOR.findall(text))
    return _LINK.sub(lambda link: link[0] if link[1] in anchors else "", text)


def _one_line(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def _allowed(text: str) -> str:
    """Return what a content security policy allows exactly this script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _marked(text: str, head: int, tail: int) -> Markup:
    """Return a text with what cannot be seen written out, and clipped."""
    made: list[Any] = []
    room = 2 * (head + tail)
    for piece in text_safety.pieces(text, head, tail):
        if len(piece.text) > room:  # what is written out takes six times the room
            made.append(Markup('{}<em class="gap"> … the rest is left out here</em>').format(escape(piece.text[:room])))
            break
        room -= len(piece.text)
        kind = {"plain": "{}", "gap": '<em class="gap">{}</em>', "escaped": '<mark class="escaped">{}</mark>'}
        made.append(Markup(kind[piece.kind]).format(piece.text))  # one of the three above
    return Markup("").join(made)

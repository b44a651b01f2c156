"""The outcome of an activity replay beside what was recorded, as rich renderables."""

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from waystation.presentation import terminal
from waystation.replay.difference import ABSENT
from waystation.replay.rerun_result import ModelRerun, Rerun


def rerun(result: Rerun) -> RenderableType:
    """Return what was edited, and a table with both sides; what differs stands out."""
    if not isinstance(result, ModelRerun) or not result.edited:
        return _comparison(result)
    edited = Text("edited  ", style="bold").append(", ".join(terminal.safe(each.place) for each in result.edited))
    return Group(edited, _comparison(result))


def _comparison(result: Rerun) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("", style="dim", overflow="fold")
    table.add_column("recorded", overflow="fold")
    table.add_column("now", overflow="fold")
    recorded, now = result.sides()
    differences = result.differences
    for name in dict.fromkeys([*recorded, *now]):
        found = [each for each in differences if _top(each.place) == name]
        if not found:
            table.add_row(name, _value(recorded[name]), Text("the same", style="dim"))
        for each in found:
            table.add_row(terminal.safe(each.place), _value(each.recorded, "red"), _value(each.now, "green"))
    durations = [f"{taken:.3f} s" if taken is not None else "" for taken in result.durations()]
    table.add_row("duration", *durations)
    verdict = Text("as recorded", style="bold green") if result.same else Text("differs", style="bold yellow")
    told = Text.assemble(verdict, f"  {terminal.safe(result.what)}, run again on this machine")
    return Group(told, table, *(Text(terminal.safe(remark), style="dim") for remark in result.remarks))


def _top(place: str) -> str:
    return place.split(".", 1)[0].split("[", 1)[0]


def _value(value: Any, style: str = "") -> Text:
    if value is ABSENT:
        return Text("nothing", style="dim")
    if isinstance(value, str):
        return Text("\n".join(map(terminal.safe, terminal.clipped(value).splitlines())) or '""', style=style)
    return Text(terminal.short_json(value), style=style)

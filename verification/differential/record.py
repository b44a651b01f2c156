"""The record of one run of a scenario, in the form in which both sides are compared.

A record has every stored event (author, branch, content, actions, long-running ids, errors, whether it is final), the
state that outlives the invocation, every model request, and any exception. Ids are numbered by first appearance.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from verification.differential.scenario import Json

Place: TypeAlias = tuple[str, str]
"""A user, and one of their sessions."""

EVENT_FIELDS = ("author", "branch", "content", "actions", "longRunningToolIds", "errorCode", "errorMessage", "final")
_MADE_UP_ID = re.compile(r"adk-[0-9a-f]{8}-[0-9a-f-]{27}|\bfc-\d+\b(?:/\w+)?")


def event_of(dumped: Mapping[str, Any], *, final: bool) -> Json:
    """Return the compared fields of an event's JSON form, without empty values."""
    event = {**dumped, "final": final}
    event["actions"] = {
        name: value for name, value in (dumped.get("actions") or {}).items() if value not in ({}, [], None)
    }
    if compaction := event["actions"].get("compaction"):
        event["actions"]["compaction"] = {"compactedContent": compaction["compactedContent"]}  # no times
    return {name: event[name] for name in EVENT_FIELDS if event.get(name) not in (None, {})}


def record(
    events: Sequence[Json],
    state: Json,
    requests: Mapping[str, Sequence[Json]],
    raised: str | None,
    *,
    parallel: bool,
    **more: Any,
) -> Json:
    """Return the record of one run; `parallel` states that the order of branches is not defined."""
    whole = {"events": events, "state": state, "requests": requests, "raised": raised, **more}
    # Through JSON, so that both sides consist of the same types.
    whole = json.loads(json.dumps(whole))
    return renumbered(sorted_branches(whole) if parallel else whole)


def of_places(states: Mapping[Place, Json]) -> Json:
    """Return the state of each session, or that of the only session without its name."""
    return (
        {"/".join(place): state for place, state in states.items()} if len(states) > 1 else next(iter(states.values()))
    )


def sorted_branches(whole: Json) -> Json:
    """Return a record in which events on parallel branches are in the order of the branches.

    Quotations in the requests of later agents have the same order.
    """
    events: list[Json] = []
    for branched, group in groupby(whole["events"], key=lambda event: "branch" in event):
        run = list(group)
        events += sorted(run, key=lambda event: event["branch"]) if branched else run
    for request in (request for requests in whole["requests"].values() for request in requests):
        contents = request["contents"]
        quoted = sorted((content for content in contents if _quotes(content)), key=str)
        request["contents"] = [quoted.pop(0) if _quotes(content) else content for content in contents]
    return {**whole, "events": events}


def _quotes(content: Json) -> bool:
    return bool(content["parts"][0].get("text", "").startswith("For context:"))


def renumbered(whole: Json) -> Json:
    """Return a record in which ids of calls are `call-1`, `call-2`, … in the order in which they appear in events.

    In requests only generated ids are numbered: the model's own ids return to it unchanged.
    """
    names: dict[str, str] = {}
    for found in _ids(whole["events"]):
        names.setdefault(found, f"call-{len(names) + 1}")

    def made_up(text: str) -> str:
        return _MADE_UP_ID.sub(lambda match: names.get(match[0], "call-?"), text)

    def walk(value: Any, text: Callable[[str], str]) -> Any:
        match value:
            case str():
                return text(value)
            case list():
                return [walk(item, text) for item in value]
            case dict():
                return {text(key): walk(item, text) for key, item in value.items()}
            case _:
                return value

    result: Json = walk(whole, made_up)
    result["events"] = walk(whole["events"], lambda text: names.get(text) or made_up(text))
    for event in result["events"]:
        if event.get("longRunningToolIds"):
            event["longRunningToolIds"].sort()
    return result


def _ids(events: Sequence[Json]) -> Iterator[str]:
    for event in events:
        for part in (event.get("content") or {}).get("parts") or ():
            for kind in ("functionCall", "functionResponse"):
                if found := (part.get(kind) or {}).get("id"):
                    yield found


def difference(expected: Any, found: Any, where: str = "") -> list[str]:
    """Return the differences of two records, one per line. Types must match: 1 equals neither 1.0 nor true."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = []
        for key in [*expected, *(key for key in found if key not in expected)]:
            place = f"{where}.{key}" if where else key
            if key not in found:
                lines.append(f"{place}: lacks {_short(expected[key])}")
            elif key not in expected:
                lines.append(f"{place}: has {_short(found[key])} besides")
            else:
                lines += difference(expected[key], found[key], place)
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        lines = []
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            lines += difference(one, other, f"{where}[{index}]")
        lines += [f"{where}[{i}]: lacks {_short(expected[i])}" for i in range(len(found), len(expected))]
        lines += [f"{where}[{i}]: has {_short(found[i])} besides" for i in range(len(expected), len(found))]
        return lines
    if type(expected) is type(found) and expected == found:
        return []
    return [f"{where}: expected {_short(expected)}, found {_short(found)}"]


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 700 else f"{shown[:700]} …"

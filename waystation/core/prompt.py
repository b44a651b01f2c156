"""The conversation as the model is shown it.

Sources: adk-semantics 13.3 for the order, 3.7 for what follows an answer, 0.4 for ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from waystation.core import ids
from waystation.core.event import Event
from waystation.core.log import Log
from waystation.core.payload import JsonObject


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the model is shown of one event."""

    content: JsonObject
    calls: tuple[str, ...]
    """Ids of the function calls in it, in order."""
    responses: dict[str, JsonObject]
    """Parts that respond to calls, by the call's id, in order."""
    attached: tuple[JsonObject, ...]
    """The parts beside responses."""


_shown: WeakKeyDictionary[Log, list[_Shown | None]] = WeakKeyDictionary()
"""What was made of a log's events so far: they never change, and every step of an invocation asks for all of them."""


def contents(log: Log) -> list[JsonObject]:
    """Return the contents of the next model request, oldest first.

    Every function call is followed at once by the latest response to each of its calls, and an answer from outside ends
    the request together with its call. Calls that were made meanwhile are never left out, unlike in ADK, because a
    model that does not see its call makes it again.
    """
    known = _shown.setdefault(log, [])
    known.extend(_show(log, event) for event in log.events[len(known) :])
    shown = [item for item in known if item]
    responses: dict[str, JsonObject] = {}
    attached: dict[str, tuple[JsonObject, ...]] = {}
    for item in shown:
        if item.responses:
            responses.update(item.responses)
            attached[next(reversed(item.responses))] = item.attached
    result: list[JsonObject] = []
    for item in _answer_last(shown):
        if item.responses and not item.calls:
            continue
        result.append(item.content)
        parts: list[JsonObject] = []
        for call_id in item.calls:
            if response := responses.get(call_id):
                parts.append(response)
                parts.extend(attached.get(call_id, ()))
        if parts:
            result.append({"role": "user", "parts": parts})
    return result


def _show(log: Log, event: Event) -> _Shown | None:
    """Return what the model is shown of an event; None for nothing."""
    parts = (event.content or {}).get("parts") or []
    calls = tuple(call["id"] for call in event.function_calls())
    answered = [response["id"] for response in event.function_responses()]
    # By id: a model that makes up a request to confirm is shown it, and that there is no such tool.
    named = (*calls, *answered)
    if not parts or (named and all(ids.confirmed_call(id) != id for id in named)):
        return None
    own = [_own_id(log, part) for part in parts]
    return _Shown(
        content={"role": "model", "parts": own} if calls else event.content or {},
        calls=calls,
        responses=dict(zip(answered, (part for part in own if part.get("functionResponse")), strict=True)),
        attached=tuple(part for part in parts if "functionResponse" not in part),
    )


def _answer_last(shown: Sequence[_Shown]) -> Sequence[_Shown]:
    """Have the request end with the call that the newest event answers, so that the model speaks to the answer.

    Only talk came in between: it is left out. Other calls did: all stays, and the answered call moves behind it.
    """
    answered = set(shown[-1].responses) if shown else set()
    between_calls = False
    for index in range(len(shown) - 2, -1, -1) if answered else ():
        if not answered.isdisjoint(shown[index].calls):
            kept = [*shown[:index], *shown[index + 1 :]] if between_calls else shown[:index]
            return [*kept, shown[index]]
        between_calls = between_calls or bool(shown[index].calls)
    return shown


def _own_id(log: Log, part: JsonObject) -> JsonObject:
    """Return the part with the model's own id of the call in place of the engine's, or with none."""
    for kind in ("functionCall", "functionResponse"):
        if kind in part:
            body = {key: value for key, value in part[kind].items() if key != "id"}
            call = log.calls.get(part[kind].get("id"))
            if call and call.call.model_id:
                body["id"] = call.call.model_id
            return {**part, kind: body}
    return part

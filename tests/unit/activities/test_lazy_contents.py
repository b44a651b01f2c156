"""The contents of a request that callbacks see: genai's types, converted when they are read."""

import copy
import json
import operator
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.genai import types

from waystation.activities.model_call.conversion import TypedRequest
from waystation.core.payload import JsonObject
from waystation.models import LlmRequest


def extended(contents: list[Any], more: list[Any]) -> list[Any]:
    contents += more
    return contents


READS: dict[str, Callable[[Any], Any]] = {
    "iteration": list,
    "unpacking": lambda contents: [*contents],
    "tuple": tuple,
    "slice": lambda contents: contents[:],
    "sum": lambda contents: operator.add(contents, []),
    "sum of a list": lambda contents: operator.add([], contents),
    "product": lambda contents: contents * 1,
    "product from the left": lambda contents: 1 * contents,
    "copy": lambda contents: contents.copy(),
    "shallow copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": lambda contents: pickle.loads(pickle.dumps(contents)),
    "extended list": lambda contents: extended([], contents),
    "sorted": lambda contents: sorted(contents, key=lambda content: content.role, reverse=True),
    "sort": lambda contents: contents.sort(key=lambda content: content.role, reverse=True) or [*contents],
    "reversed": lambda contents: [*reversed(contents)][::-1],
    "popped": lambda contents: [contents.pop(0), contents.pop()],
    "swapped": lambda contents: contents.reverse() or [contents.pop(), contents.pop()],
}


def plain() -> list[JsonObject]:
    """Return a message and a reply with a field that genai's types do not know."""
    return [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "pay", "args": {"to": ["Ann"]}}, "newField": 1}]},
    ]


class Request:
    """A request with contents for a callback."""

    def __init__(self, contents: list[JsonObject]) -> None:
        self._typed = TypedRequest(LlmRequest(model="m", contents=contents), {})
        self.editable: Any = self._typed.editable
        self.contents: Any = self.editable.contents

    def sent(self) -> Sequence[JsonObject]:
        """Return the contents that are sent to the model."""
        return self._typed.plain().contents


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_to_read_the_contents_gives_genai_types(read: Callable[[Any], Any]) -> None:
    """A callback gets genai's types, although contents are converted late."""
    contents = read(Request(plain()).contents)
    assert [type(content) for content in contents] == [types.Content] * 2
    assert [content.role for content in contents] == ["user", "model"]


def test_contents_compare_and_print_like_a_list() -> None:
    """Comparisons, searches and texts cover all contents."""
    contents = Request(plain()).contents
    expected = [*Request(plain()).contents]
    assert contents == expected
    assert expected == contents
    assert repr(contents) == repr(expected)
    assert expected[1] in Request(plain()).contents
    assert Request(plain()).contents.index(expected[1]) == 1
    assert Request(plain()).contents.count(expected[0]) == 1


def test_unread_contents_stay_unconverted() -> None:
    """Contents that no callback reads are sent without conversion."""
    contents = plain()
    request = Request(contents)
    request.contents.append(types.Content(role="user", parts=[types.Part(text="more")]))
    del request.contents[0]
    result = request.sent()
    assert result[0] is contents[1]
    assert result[1] == {"role": "user", "parts": [{"text": "more"}]}


def test_contents_that_are_only_read_keep_unknown_fields() -> None:
    """The original JSON is sent, so fields that genai does not know are kept."""
    contents = plain()
    request = Request(contents)
    assert request.contents[-1].parts[0].function_call.name == "pay"
    assert request.sent()[1] is contents[1]


def test_no_change_by_a_callback_reaches_the_cache() -> None:
    """Changes by a callback, in contents, arguments or the list, do not reach the cache."""
    contents = plain()
    request = Request(contents)
    request.contents[1].parts[0].function_call.args["to"].append("Eve")
    request.contents[0].parts[0].text = "stop"
    request.contents.insert(0, types.Content(role="user", parts=[]))
    changed = json.dumps(request.sent())
    assert "Eve" in changed
    assert "stop" in changed
    assert contents == plain()


def test_a_list_of_numbers_is_refused() -> None:
    """Contents cannot be a list of numbers, which would look like references to stored contents."""
    request = Request(plain())
    request.editable.contents = [0]
    with pytest.raises(TypeError, match=r"A callback set `contents\[0\]` to an int"):
        request.sent()

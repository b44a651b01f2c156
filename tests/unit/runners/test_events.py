"""Events with genai's types, as programs receive them."""

import pytest
from google.genai import types

from waystation.core import contract
from waystation.core.payload import JsonObject
from waystation.events import Event, EventActions
from waystation.runners.debug_output import print_event

CALL = {"functionCall": {"id": "fc-1", "name": "pay", "args": {"amount": 5}}}
RESPONSE = {"functionResponse": {"id": "fc-1", "name": "pay", "response": {"ok": True}}}


def recorded(*parts: JsonObject, **fields: object) -> Event:
    """Return a program's form of a recorded event."""
    content = {"role": "model", "parts": list(parts)}
    return Event.from_recorded(
        contract.Event.model_validate({"invocation_id": "i", "author": "a", "content": content, **fields})
    )


def test_recorded_content_becomes_genai_content() -> None:
    """Calls and responses are genai's objects."""
    event = recorded(CALL, RESPONSE, {"text": "Done."})
    assert isinstance(event.content, types.Content)
    assert [call.args for call in event.get_function_calls()] == [{"amount": 5}]
    assert [response.response for response in event.get_function_responses()] == [{"ok": True}]


def test_unknown_fields_of_parts_are_left_out() -> None:
    """Unknown fields are left out, so a provider's new field does not make the event unreadable."""
    event = recorded({"text": "Hi.", "brandNew": 1})
    assert event.content == types.Content(role="model", parts=[types.Part(text="Hi.")])


@pytest.mark.parametrize(
    ("event", "is_final"),
    [
        (recorded({"text": "Done."}), True),
        (recorded(CALL), False),
        (recorded(RESPONSE), False),
        (recorded(CALL, long_running_tool_ids=["fc-1"]), True),
        (recorded(RESPONSE, actions={"skip_summarization": True}), True),
        (recorded({"text": "Do"}, partial=True), False),
        (recorded({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}), False),
        (Event(author="a", error_code="X"), True),
        (Event(author="a"), True),
    ],
)
def test_final_responses_are_those_of_adk(event: Event, is_final: bool) -> None:
    """The results equal those of ADK 2.13."""
    assert event.is_final_response() is is_final


def test_token_counts_have_the_names_of_genai() -> None:
    """The field `usage_metadata.total_token_count`, which programs read, has genai's name."""
    event = recorded({"text": "Hi."}, usage_metadata={"prompt_tokens": 3, "output_tokens": 2, "total_tokens": 5})
    assert event.usage_metadata is not None
    assert (event.usage_metadata.candidates_token_count, event.usage_metadata.total_token_count) == (2, 5)


def test_message_and_state_are_short_forms_of_content_and_state_delta() -> None:
    """ADK's constructor accepts both, and refuses a message beside a content."""
    event = Event.model_validate({"author": "a", "message": "Hi.", "state": {"n": 1}})
    assert (event.message, event.actions.state_delta) == (types.UserContent("Hi."), {"n": 1})
    event.message = types.Content(role="model", parts=[])
    assert event.content == types.Content(role="model", parts=[])
    with pytest.raises(ValueError, match="mutually exclusive"):
        Event.model_validate({"message": "Hi.", "content": event.content})


def test_changing_an_event_does_not_change_what_was_recorded() -> None:
    """Content, actions and metadata of a converted event are copies."""
    before = contract.Event(
        invocation_id="i",
        author="a",
        content={"role": "model", "parts": [CALL]},
        actions=contract.EventActions(state_delta={"cart": ["apple"]}),
        custom_metadata={"tags": ["a"]},
    )
    event = Event.from_recorded(before)
    event.get_function_calls()[0].args["amount"] = 6  # type: ignore[index]
    event.actions.state_delta["cart"].append("pear")
    event.actions.escalate = True
    event.custom_metadata["tags"].append("b")  # type: ignore[index]
    assert before == before.model_validate_json(before.model_dump_json())
    assert before.content == {"role": "model", "parts": [{"functionCall": {**CALL["functionCall"]}}]}
    assert (before.actions.state_delta, before.custom_metadata) == ({"cart": ["apple"]}, {"tags": ["a"]})


def test_summary_has_a_genai_content() -> None:
    """Summarizers written for ADK read the text of an earlier summary."""
    content = {"role": "model", "parts": [{"text": "So far."}]}
    compaction = contract.EventCompaction(start_timestamp=1.0, end_timestamp=2.0, compacted_content=content)
    event = recorded(actions=contract.EventActions(compaction=compaction))
    assert event.actions.compaction is not None
    assert event.actions.compaction.compacted_content == types.Content(role="model", parts=[types.Part(text="So far.")])


def test_content_newer_than_the_installed_types_has_no_parts() -> None:
    """Other fields of such an event can be read."""
    event = recorded({"functionCall": {"name": "pay", "args": {}, "brandNew": 1}})
    assert event.content == types.Content(role="model", parts=[])


def test_event_can_be_constructed_and_changed() -> None:
    """As in ADK, an event has an ID and a time, and its content can be set."""
    event = Event(author="user", content=types.Content(parts=[types.Part(text="Hi.")]))
    event.content = None
    assert event.id
    assert event.timestamp
    assert event.actions == EventActions()


def test_json_form_has_the_names_of_adk() -> None:
    """The JSON form is camelCase, with sorted IDs of long-running calls."""
    event = Event(author="a", long_running_tool_ids={"fc-2", "fc-1"})
    assert event.model_dump(mode="json", by_alias=True)["longRunningToolIds"] == ["fc-1", "fc-2"]


def test_debug_output_shows_text_and_with_verbose_calls(capsys: pytest.CaptureFixture[str]) -> None:
    """Consecutive texts are one line; calls and results are shown only with `verbose`."""
    event = recorded({"text": "One "}, {"text": "line."}, CALL, {"text": "End."})
    print_event(event)
    assert capsys.readouterr().out == "a > One line.\na > End.\n"
    print_event(event, verbose=True)
    assert capsys.readouterr().out == "a > One line.\na > [Calling tool: pay({'amount': 5})]\na > End.\n"

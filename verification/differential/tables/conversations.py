"""Conversations of several messages. Sections 3.4, 3.7, 9.1 and 13.3 of the semantics page."""

from collections.abc import Mapping, Sequence
from typing import Any

from verification.differential.scenario import (
    Cast,
    Json,
    Refusal,
    Reply,
    Scenario,
    alone,
    approves,
    calls,
    rejects,
    reports,
    responds,
    shows,
)
from verification.differential.tables.long_running import NOTED
from waystation.tools import FunctionTool, LongRunningFunctionTool, ToolContext


def _tools() -> list[Any]:
    def note(text: str, tool_context: ToolContext) -> Json:
        """Note something down."""
        notes = [*tool_context.state.get("notes", []), text]
        tool_context.state["notes"] = notes
        return {"noted": len(notes)}

    def ask(purpose: str) -> Json:
        """Ask somebody."""
        return {"status": "pending"}

    def order(what: str) -> Json:
        """Order something."""
        return {"status": "ordered", "what": what}

    def pay(amount: int) -> Json:
        """Pay an amount."""
        return {"paid": amount}

    return [
        note,
        LongRunningFunctionTool(ask),
        LongRunningFunctionTool(func=order),
        FunctionTool(pay, require_confirmation=True),
    ]


def _talk(name: str, *replies: Reply, **fields: Any) -> Scenario:
    fields.setdefault("tools", _tools)
    fields["deviations"] = {"long-running-note": NOTED, **fields.get("deviations", {})}
    return alone(f"conversation_{name}", *replies, **fields)


def _desk(cast: Cast) -> Any:
    """Return a desk that transfers to a clerk, which may transfer back."""
    from waystation.agents import LlmAgent

    clerk = LlmAgent(name="clerk", description="Knows prices.", model=cast.model("clerk"))
    locked = LlmAgent(
        name="locked", description="Says one thing.", model=cast.model("locked"), disallow_transfer_to_parent=True
    )
    return LlmAgent(name=cast.name, model=cast.model("desk"), sub_agents=[clerk, locked])


def _handing(name: str, script: Mapping[str, Sequence[Reply]], **fields: Any) -> Scenario:
    script = {"clerk": [], "locked": [], **script}
    return Scenario(name=f"conversation_{name}", agent=_desk, script=script, deviations=QUOTING, **fields)


def _to(agent: str) -> Json:
    return calls(("transfer_to_agent", {"agent_name": agent}))


def _sequence(cast: Cast) -> Any:
    from waystation.agents import LlmAgent, SequentialAgent

    return SequentialAgent(
        name=cast.name, sub_agents=[LlmAgent(name=name, model=cast.model(name)) for name in ("first", "second")]
    )


NOTE, NOTE_TOO = calls(("note", {"text": "one"})), calls(("note", {"text": "two"}))
ASK, PAY = calls(("ask", {"purpose": "p"})), calls(("pay", {"amount": 5}))
HALF, DONE = {"status": "half"}, {"status": "done"}
WAITING, FAILING = shows("no-placeholder"), shows("failures-of-models-are-named")
QUOTING = shows("quotations-are-introduced-otherwise")

TABLE: list[Scenario] = [
    _talk("two_messages", "hello", "and hello again", answers=["again"]),
    _talk("three_messages", "one", "two", "three", answers=["second", "third"]),
    _talk("tools_between", NOTE, "noted", NOTE_TOO, "noted again", "bye", answers=["more", "thanks"]),
    _talk("state_lasts", NOTE, "noted", NOTE_TOO, "noted again", answers=["more"], state={"notes": ["zero"]}),
    _talk(
        "silence_then_talk",
        NOTE,
        "",
        "here I am",
        answers=["are you there?"],
        deviations=shows("empty-texts-are-left-out"),
    ),
    _talk(
        "pending_then_talk",
        ASK,
        "it is pending",
        "chat",
        "half done",
        "all done",
        "you are welcome",
        answers=["how is it?", reports(HALF), responds(DONE), "thanks"],
        deviations=shows(replies_between_updates_stay={"request": 5, "content": 6, "text": "half done"}),
    ),
    _talk("answered_then_talk", ASK, "it is pending", "all done", "welcome", answers=[responds(DONE), "thanks"]),
    _talk("left_pending", ASK, "it is pending", "chat", "more chat", answers=["how is it?", "and now?"]),
    _talk(
        "calls_meanwhile", ASK, "it is pending", NOTE, "noted", "done", "bye", answers=["note", responds(DONE), "bye"]
    ),
    _talk(
        "confirmed_after_talk", PAY, "chat", "paid", "bye", answers=["wait", approves(), "thanks"], deviations=WAITING
    ),
    _talk(
        "rejected_after_talk", PAY, "chat", "not paid", "bye", answers=["wait", rejects(), "thanks"], deviations=WAITING
    ),
    _talk(
        "a_failed_turn",
        Refusal("no"),
        "here again",
        answers=["still there?"],
        deviations=FAILING,
    ),
    _talk(
        "a_failed_turn_with_a_tool",
        NOTE,
        Refusal("no"),
        "here again",
        answers=["still there?"],
        deviations=FAILING,
    ),
    _handing("a_transfer_lasts", {"desk": [_to("clerk")], "clerk": ["5 euros", "6 euros"]}, answers=["and now?"]),
    _handing(
        "handed_back",
        {"desk": [_to("clerk"), "the desk again", "yes"], "clerk": ["5 euros", _to("conversation_handed_back")]},
        answers=["give me the desk", "are you the desk?"],
    ),
    _handing(
        "a_transfer_that_does_not_last",
        {"desk": [_to("locked"), "the desk"], "locked": ["one thing"]},
        answers=["and?"],
    ),
    Scenario(
        name="conversation_of_a_sequence",
        agent=_sequence,
        script={"first": ["a1", "a2"], "second": ["b1", "b2"]},
        answers=["again"],
        deviations=QUOTING,
    ),
]

"""Messages, turns and trees of agents, as the pages of agents and sessions show them."""

import re
from collections.abc import Mapping

import pytest

from tests.unit.core.story import (
    answered,
    cancelled,
    log_of,
    model_called,
    model_calls,
    model_replied,
    tool_returned,
    user_message,
)
from waystation.agents import Agent, SequentialAgent
from waystation.apps import Registry
from waystation.client import DETAILS, AgentDetails
from waystation.client.agent_directory import parse_details
from waystation.tools import AgentTool
from waystation.web.agent_pages import MAX_NODES, Node, make_tree
from waystation.web.markdown_text import MAX_CHARS, MAX_NESTING, render_markdown
from waystation.web.turn_views import make_turn
from waystation.worker.plugin import MAX_DESCRIPTION, list_agents

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</code></pre><iframe srcdoc='<script>1</script>'>",
    "<!--<script>-->",
    "<a href=javascript:alert(1)>x</a>",
    "<a\nhref=javascript:alert(1)>x</a>",
    '```"><img src=x>\nx\n```',
    "# <b>\n\n| <i> |\n|---|\n| <u> |",
)
HARMLESS = {"p", "strong", "em", "s", "code", "pre", "ul", "ol", "li", "blockquote", "br", "hr"}
TABLE = {"table", "thead", "tbody", "tr", "th", "td"}


def find_tags(html: str) -> list[tuple[str, str]]:
    """Return the tags of HTML in which all text is escaped, each with its attributes."""
    return [(name, attributes.strip(" /")) for name, attributes in re.findall(r"<([^\s>/]+)([^>]*)>", html)]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_message_contains_no_html_of_the_model(text: str) -> None:
    """The result has only the tags of Markdown, without addresses, styles and event handlers."""
    tags = find_tags(render_markdown(text) or "")
    assert {name for name, _ in tags} <= HARMLESS | TABLE
    assert all(re.fullmatch(r'(class="(language-[^"]*|heading)"|start="\d+"|)', each) for _, each in tags), tags


@pytest.mark.parametrize(
    "text",
    ["[pay](https://evil.example)", "![x](https://evil.example/?s)", "<https://evil.example>", "[a]: //b\n\n[a]"],
)
def test_a_message_has_neither_links_nor_images(text: str) -> None:
    """Links and images are shown as text: a link could hide its address, and an image could send data."""
    html = render_markdown(text)
    assert html is not None
    assert {name for name, _ in find_tags(html)} == {"p"}
    assert html.striptags() == " ".join(text.split())


def test_a_message_shows_invisible_characters() -> None:
    """Invisible characters are shown, even those that are written as character references."""
    assert render_markdown("pay\u202e &#8238;") == "<p>pay\\u202e &amp;#8238;</p>\n"


@pytest.mark.parametrize("text", ["x" * (MAX_CHARS + 1), ">" * (2 * MAX_NESTING) + "x"])
def test_a_text_that_cannot_be_rendered_completely_is_plain(text: str) -> None:
    """The renderer would be slow or drop deeply nested content."""
    assert render_markdown(text) is None


def test_a_call_and_its_result_are_one_item() -> None:
    """The item of a call and its result is at the place of the call."""
    log = log_of(
        user_message("go"), model_calls("pay", args={"amount": 5, "api_key": "k"}), tool_returned("fc-1", {"paid": 5})
    )
    user, call = make_turn(log).items
    assert (user.kind, str(user.text)) == ("user", "go")
    assert (call.kind, call.text, call.state) == ("call", "pay(amount=5, api_key=…)", "done")
    assert '"paid": 5' in str(call.response)
    assert '"k"' not in str(call.args)


def test_the_status_of_a_turn_names_its_pending_work() -> None:
    """A turn runs, waits for a person, runs again, and ends."""
    waiting = user_message("go"), model_calls("pay", gated=True)
    running = *waiting, answered("fc-1"), tool_returned("fc-1", {"paid": 5}), model_called()
    logs = (
        log_of(user_message("go")),
        log_of(*waiting),
        log_of(*running),
        log_of(*running, model_replied("Done."), cancelled()),
    )
    assert [make_turn(log).status for log in logs] == ["running", "waiting", "running", "cancelled"]
    assert [item.state for log in logs for item in make_turn(log).items if item.kind == "call"] == [
        "waiting",
        "done",
        "done",
    ]


def test_a_call_shows_its_approver() -> None:
    """The comment of the approver is shown, and the events of the question and its answer are hidden."""
    log = log_of(user_message("go"), model_calls("pay", gated=True), answered("fc-1", by="dana", comment="fine"))
    assert [item.decision for item in make_turn(log).items] == ["", "approved by dana (unverified): “fine”"]


def test_the_key_of_a_turn_changes_with_its_events() -> None:
    """The key changes, so that the script of an open page fetches the turn again."""
    logs = log_of(user_message("go")), log_of(user_message("go")), log_of(user_message("go"), model_replied("Done."))
    keys = [make_turn(log).key for log in logs]
    assert keys[0] == keys[1] != keys[2]


def draw(node: Node) -> Mapping[str, object]:
    """Return the drawing of a tree as nested names."""
    return {f"{node.link} {node.name}{' again' if node.repeats else ''}".strip(): [*map(draw, node.children)]}


def test_workers_describe_their_agents() -> None:
    """Workers announce descriptions, models, sub-agents and called agents, besides the tools."""

    def search(query: str) -> str:
        return query

    checker = Agent(name="checker", model="gemini-2.5-pro", description="x" * 1_000)
    reader = Agent(name="reader", description="Reads.", tools=[search, AgentTool(checker)])
    root = SequentialAgent(name="report", sub_agents=[reader, Agent(name="writer")])
    agents = parse_details("report", list_agents(Registry.of(root))["report"])
    assert draw(make_tree("report", agents)) == {
        "report": [{"sub-agent reader": [{"tool checker": []}]}, {"sub-agent writer": []}]
    }
    assert [agents[name].kind for name in ("report", "reader")] == ["sequential", "llm"]
    assert (agents["reader"].description, agents["reader"].tools) == ("Reads.", ("checker", "search"))
    assert (agents["checker"].model, len(agents["checker"].description)) == ("gemini-2.5-pro", MAX_DESCRIPTION)


def test_tools_are_announced_even_if_the_details_are_too_large() -> None:
    """The warning about a tool that was removed needs only the tools."""
    root = SequentialAgent(
        name="all", sub_agents=[Agent(name=f"agent_{n}", description="y" * 300) for n in range(MAX_NODES)]
    )
    announced = list_agents(Registry.of(root))["all"]
    assert len(announced) == MAX_NODES
    assert DETAILS not in announced


@pytest.mark.parametrize("announced", [None, [], {DETAILS: 7}, {DETAILS: {"a": {"kind": 7}}}, {"a": ["pay"]}])
def test_any_announcement_can_be_read(announced: object) -> None:
    """Any announcement can be read, because anyone with access to the namespace can write one."""
    agents = parse_details("a", announced)
    assert next(iter(agents)) == "a"
    assert isinstance(make_tree("a", agents).details, AgentDetails)


def test_a_tree_with_a_cycle_is_drawn_once() -> None:
    """A tree with a cycle is drawn once, because agents can call each other as tools."""
    agents = {
        "a": AgentDetails(called=("b",)),
        "b": AgentDetails(called=("a",), sub_agents=("c",)),
        "c": AgentDetails(),
    }
    assert draw(make_tree("a", agents)) == {"a": [{"tool b": [{"sub-agent c": []}, {"tool a again": []}]}]}


def test_the_drawing_of_a_large_tree_is_limited() -> None:
    """The drawing is limited, because anyone with access to the namespace can announce a tree of any size."""
    names = [f"agent_{n}" for n in range(3 * MAX_NODES)]
    agents = {name: AgentDetails(called=tuple(names)) for name in names}

    def count(node: Node) -> int:
        return 1 + sum(map(count, node.children))

    assert count(make_tree(names[0], agents)) <= MAX_NODES

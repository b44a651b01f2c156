"""The agents of the how-to pages pass `waystation worker check` and behave as described, on a real server."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.documents import blocks, how_to
from tests.server.cli.shell import Shell
from tests.server.conftest import Serve
from tests.steps import run, start_and_finish, start_and_wait, wait_for_calls
from waystation.apps import App
from waystation.apps.registry import Registry, discover
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.core.contract import Event
from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject
from waystation.embedded import EmbeddedServer
from waystation.models import LlmRequest, LlmResponse
from waystation.testing import AgentEnvironment, FunctionModel, ScriptedHuman, ScriptedModel, calls, says
from waystation.tools.services import Services

PAGES = (
    *("write-tools", "connect-toolsets", "combine-agents", "use-callbacks", "keep-state"),
    *("keep-artifacts-and-memory", "provide-credentials", "require-approval"),
)
TEXT = "\n".join(how_to(name) for name in PAGES)
AGENTS = [block for block in blocks(TEXT, "python") if "\nroot_agent = " in block and not block.startswith("# ")]
"""A block that is not a complete `agent.py` begins with a comment, or defines no root agent."""
(PROGRAM,) = [block for block in blocks(how_to("write-tools"), "python") if block.startswith("# answer.py")]

MCP_SERVER, NOBODY = "http://127.0.0.1:8000/mcp", "http://127.0.0.1:9/mcp"
"""The address of the MCP server on the page, and one where none listens."""


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Return all agents of the pages, each in its own package, without mistakes."""
    folder = tmp_path_factory.mktemp("registry")
    for number, block in enumerate(AGENTS):
        package = folder / f"guide_{number}"
        package.mkdir()
        (package / "agent.py").write_text(block.replace(MCP_SERVER, NOBODY))
    registry, problems = discover([folder])
    assert [str(problem) for problem in problems] == []
    return registry


def app_with_plugins(registry: Registry, name: str) -> App:
    """Return an agent of the pages, with its plugins."""
    root = registry.roots[name]
    return App(name="registry", root_agent=root.agent, plugins=list(root.plugins))


def tool_responses(events: Sequence[Event]) -> list[JsonObject]:
    """Return the responses of tools, without the answers of people."""
    responses = [response for event in events for response in event.function_responses()]
    return [response["response"] for response in responses if not response["name"].startswith("adk_")]


async def run_agent(env: AgentEnvironment, agent: str, *people: JsonObject | str, **options: Any) -> list[JsonObject]:
    """Run an agent with scripted approvers, and return the responses of its tools."""
    invocation = await env.client.start(agent, "go", **options)
    return tool_responses(await ScriptedHuman(*people).attend(invocation))


def test_every_agent_of_the_pages_was_found(registry: Registry) -> None:
    """Each block is one agent with its own name."""
    assert len(registry.roots) == len(AGENTS) == 22


def test_every_section_with_an_agent_describes_records_and_crashes() -> None:
    """Every section uses the same two phrases, so that readers find them."""
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        if any(block in part for block in AGENTS):
            assert "*Recorded:*" in part, part.splitlines()[0]
            assert "*After a crash:*" in part, part.splitlines()[0]


async def test_function_tools_return_results_and_errors(serve: Serve, registry: Registry) -> None:
    """The model receives a result, an error for an invalid argument, and an exception."""
    table = {"restaurant": "Rose", "guests": 4}
    arguments = [table, {**table, "guests": 13}, {**table, "place": "garden"}]
    model = ScriptedModel(calls(*(("book_table", args) for args in arguments)), says("Booked."))
    async with serve(app_with_plugins(registry, "table_agent"), model=model) as env:
        first, second, third = await run_agent(env, "table_agent")
    assert first == {"status": "booked", "reference": "Rose-4"}
    assert "Parameter 'guests'" in second["error"]
    assert third == {"error": "The garden is closed.", "error_type": "LookupError"}


async def test_settings_reach_the_tool(serve: Serve, registry: Registry) -> None:
    """The idempotency key names the invocation and the call."""
    model = ScriptedModel(
        calls(("charge", {"order": "o", "amount": 5}), ("render", {"film": "f"})), says("Charged and rendered.")
    )
    async with serve(app_with_plugins(registry, "studio_agent"), model=model) as env:
        charged, rendered = await run_agent(env, "studio_agent", id=f"studio-{env.client.task_queue}")
        assert charged == {"status": "charged", "key": f"studio-{env.client.task_queue}/fc-1"}
    assert rendered == {"status": "rendered", "attempt": 1}


@pytest.mark.slow
async def test_confirmations_wait(serve: Serve, registry: Registry) -> None:
    """All three forms wait for an approver; a small payment does not."""
    model = ScriptedModel(
        calls(("close_account", {"account": "a"})),
        calls(("pay", {"account": "a", "amount": 5})),
        calls(("pay", {"account": "a", "amount": 1000})),
        calls(("book_leave", {"days": 5})),
        says("Done."),
    )
    people = ("approve", {"action": "reject", "comment": "no"}, {"action": "approve", "response": {"days": 3}})
    async with serve(app_with_plugins(registry, "office_agent"), model=model) as env:
        closed, paid, rejected, *leave = await run_agent(env, "office_agent", *people)
    assert (closed, paid) == ({"status": "closed"}, {"status": "paid"})
    assert "rejected" in rejected["error"]
    assert leave[-1] == {"status": "booked", "days": 3}


async def test_approval_policies_apply(serve: Serve, registry: Registry) -> None:
    """Calls wait by rule, by amount and by the tool's own policy; a read does not."""
    invoice_calls: list[tuple[str, JsonObject]] = [
        ("look_up", {"invoice": "i"}),
        ("settle", {"invoice": "i", "amount": 900}),
    ]
    invoice_calls += [("settle", {"invoice": "j", "amount": 90_000}), ("write_off", {"invoice": "k"})]
    model = ScriptedModel(calls(*invoice_calls), says("Done."))
    async with serve(app_with_plugins(registry, "invoice_agent"), model=model) as env:
        invocation = await env.client.start("invoice_agent", "go")
        pending = await wait_for_calls(invocation, "fc-2", "fc-3", "fc-4")
        policies = [call.policy for call in pending if call.policy]
        assert [(policy.approvers, policy.quorum) for policy in policies] == [
            ((), 1),
            (("role:board",), 2),
            (("role:board",), 2),
        ]
        await invocation.approve("fc-2", comment="as ordered")
        for board in ("fc-3", "fc-4"):
            with pytest.raises(NotAllowed):  # nobody has proven to be a board member
                await invocation.approve(board, by="role:board")
        await invocation.cancel()


@pytest.mark.slow
async def test_the_answering_program_works(registry: Registry, tmp_path: Path) -> None:
    """The answering program runs unchanged with a worker on the default task queue."""
    (tmp_path / "answer.py").write_text(PROGRAM)
    model = ScriptedModel(calls(("order_part", {"part": "fuse"})))
    model.add(*(says(f"News {number}.") for number in (1, 2, 3)))
    async with (
        EmbeddedServer() as server,
        AgentEnvironment(app_with_plugins(registry, "order_agent"), model=model, server=server),
    ):
        code, out = await Shell.at(tmp_path, server.address).run("python answer.py")
    assert (code, out.startswith("News ")) == (0, True), out


async def test_agents_as_tools_answer(serve: Serve, registry: Registry) -> None:
    """The called agent receives its input schema, and its answer is final."""
    model = ScriptedModel(calls(("summary_agent", {"text": "Long."})), says("Short."))
    async with serve(app_with_plugins(registry, "editor_agent"), model=model) as env:
        assert await run_agent(env, "editor_agent") == [{"result": "Short."}]
    assert [request.contents[0]["parts"][0]["text"] for request in model.requests] == [
        "go",
        '{"text":"Long.","words":30}',
    ]


async def test_several_agents_share_a_conversation(serve: Serve, registry: Registry) -> None:
    """A tool transfers the conversation."""
    model = ScriptedModel(calls(("check_urgency", {"problem": "fire"})), says("Stay calm."))
    result = await run(serve(app_with_plugins(registry, "reception_agent"), model=model), "reception_agent", "fire!")
    assert (result.text, result.next_agent) == ("Stay calm.", "emergency_agent")
    assert [tool["name"] for tool in model.requests[0].tools] == ["transfer_to_agent", "check_urgency"]


async def test_workflow_agents_run_in_order(serve: Serve, registry: Registry) -> None:
    """Two agents run in parallel, then two in turns until the critic ends the loop."""

    def reply(request: LlmRequest) -> LlmResponse | str:
        instruction = request.system_instruction or ""
        if "history of" in instruction:
            return "Old."
        if "science of" in instruction:
            return "True."
        if "Write a text from: Old. True." in instruction:
            return "Better." if "Vague." in str(request.contents) else "Good."
        return calls(("exit_loop", {})) if "wrong with it: Better." in instruction else "Vague."

    async with serve(app_with_plugins(registry, "article_agent"), model=FunctionModel(reply)) as env:
        invocation = await start_and_finish(env.client.start("article_agent", "bread", user_id="writer"))
        assert await invocation.state() == {"history": "Old.", "science": "True.", "draft": "Better."}


async def test_state_is_kept(serve: Serve, registry: Registry) -> None:
    """State is in the instruction, and `temp:` values are in no result."""
    model = ScriptedModel(
        calls(("add_to_cart", {"article": "tea"})), calls(("add_to_cart", {"article": "milk"})), says("Two.")
    )
    result = await run(
        serve(app_with_plugins(registry, "shop_agent"), model=model), "shop_agent", "tea and milk", user_id="customer"
    )
    assert result.state_delta == {"cart": ["tea", "milk"], "user:last_article": "milk"}
    assert [(request.system_instruction or "").splitlines()[0] for request in model.requests] == [
        "Sell things. In the cart: ",
        "Sell things. In the cart: ['tea']",
        "Sell things. In the cart: ['tea', 'milk']",
    ]


async def test_callbacks_and_plugins_run(serve: Serve, registry: Registry) -> None:
    """A callback answers one call and changes another; a plugin records both."""
    model = ScriptedModel(calls(("search", {"query": " "}), ("search", {"query": "CATS"})), says("Cats."))
    async with serve(app_with_plugins(registry, "archive_agent"), model=model) as env:
        invocation = await start_and_finish(env.client.start("archive_agent", "cats", user_id="archivist"))
        responses = tool_responses([event async for event in invocation.events()])
        assert await invocation.state() == {"used:search": True, "uses": 1}
    assert responses == [{"error": "Say what to look for."}, {"result": ["something about cats"]}]


@pytest.mark.parametrize(
    ("state", "offered"),
    [({}, ["notebook_read"]), ({"user:role": "editor"}, ["notebook_read", "notebook_write"])],
    ids=["reader", "editor"],
)
async def test_toolsets_follow_the_state(
    serve: Serve, registry: Registry, state: JsonObject, offered: list[str]
) -> None:
    """The offered tools depend on the state."""
    model = ScriptedModel(calls(("notebook_read", {"page": 7})), says("Seven."))
    async with serve(app_with_plugins(registry, "notebook_agent"), model=model) as env:
        assert await run_agent(env, "notebook_agent", state=state, app=env.client.task_queue) == [{"result": "page 7"}]
    assert [tool["name"] for tool in model.requests[0].tools] == offered


async def test_toolsets_of_services_have_tools(serve: Serve, registry: Registry) -> None:
    """An operation is a tool; an unreachable server that is optional is left out."""
    assert MCP_SERVER in TEXT
    model = ScriptedModel(says("Which book?"))
    assert (
        await run(serve(app_with_plugins(registry, "library_agent"), model=model), "library_agent", "A book, please.")
    ).text == "Which book?"
    (tool,) = model.requests[0].tools
    assert (tool["name"], tool["parametersJsonSchema"]["required"]) == ("get_book", ["isbn"])


@pytest.mark.parametrize(
    ("tool", "args", "answer"),
    [
        ("search_archive", {"query": "cats"}, {"query": "cats", "sent": ["X-Api-Key"]}),
        ("list_archive", {}, {"status": "listed"}),
    ],
)
async def test_authentication_waits_for_a_key(
    serve: Serve, registry: Registry, tool: str, args: JsonObject, answer: JsonObject
) -> None:
    """The tool runs again when the key is in the store, and the key is in no history."""
    store = InMemoryCredentialService()
    model = ScriptedModel(calls((tool, args)), says("Found."))
    async with serve(
        app_with_plugins(registry, "reader_agent"), model=model, services=Services(credentials=store)
    ) as env:
        invocation = await start_and_wait(env.client.start("reader_agent", "cats"), "fc-1")
        await invocation.authorize(store=store, credential="key-7c1e9a52")
        await invocation.result()
        assert tool_responses([event async for event in invocation.events()])[-1] == answer
        recorded = b"".join(event.SerializeToString() for event in (await invocation.history()).events)
    assert b"key-7c1e9a52" not in recorded


async def test_artifacts_and_memory_are_stored(serve: Serve, registry: Registry) -> None:
    """A tool loads the artifact that another tool saved."""
    model = ScriptedModel(
        calls(("save_report", {"name": "r.txt", "text": "one two three"})),
        calls(("count_words", {"name": "r.txt"}), ("count_words", {"name": "s.txt"})),
        says("Three."),
    )
    async with serve(app_with_plugins(registry, "report_agent"), model=model) as env:
        responses = await run_agent(env, "report_agent")
    missing = {"error": "There is no such report.", "reports": ["r.txt"]}
    assert responses == [{"version": 0}, {"words": 3, "mentioned": 0}, missing]


async def test_built_in_tools_ask_a_person(serve: Serve, registry: Registry) -> None:
    """The model asks a person and receives the answer."""
    model = ScriptedModel(calls(("adk_request_input", {"message": "Which city?"})), says("Bern it is."))
    async with serve(app_with_plugins(registry, "guide_agent"), model=model) as env:
        human = ScriptedHuman({"action": "respond", "response": {"city": "Bern"}})
        invocation = await env.client.start("guide_agent", "weather")
        await human.attend(invocation)
        assert (await invocation.result()).text == "Bern it is."
    assert human.asked[0].args == {"message": "Which city?"}

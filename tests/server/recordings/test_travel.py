"""Moments of recordings, and differences between moments and between invocations, on a server."""

from pathlib import Path

from tests.paths import HISTORIES
from tests.programs import command
from tests.server.conftest import Serve
from tests.steps import approve_and_finish, start_and_finish, start_and_wait
from waystation.agents import Agent
from waystation.replay import Recording, difference, prompt_at
from waystation.testing import ScriptedModel, calls, says
from waystation.tools.function_tool import FunctionTool


async def test_notebooks_show_text_without_markup(serve: Serve) -> None:
    """The notebook view escapes texts, and contains no scripts."""
    text = "<script>alert(1)</script> [bold]x[/bold] \x1b[31m"
    agent = Agent(name="clerk", model=ScriptedModel(says(text)))
    async with serve(agent) as env:
        invocation = await start_and_finish(env.client.start("clerk", text, state={text: text}))
        recording = await Recording.of(invocation)
    moments = recording.moment(1), recording.moment(2)
    displays = [recording, *moments, await prompt_at(recording), difference(*moments), difference(recording, recording)]
    for each in displays:
        html = each._repr_html_()
        assert "<script" not in html
        assert "\x1b" not in html
        assert "[bold]" in html or each is displays[4]
        assert "&lt;script&gt;" in html or each is displays[4]


async def test_a_session_is_not_an_invocation(serve: Serve) -> None:
    """The message asks for one of the session's invocations."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("Hello.")))) as env:
        session = env.client.session(agent="clerk", session_id=f"t-{env.client.task_queue}", user_id="ann")
        await (await session.send("Hi.")).result()
        invocation = f"{session.id}/1"
        for command_line in (
            ("events", session.id, "--at", "1"),
            ("diff", session.id, invocation),
            ("rerun", session.id, "1"),
        ):
            agents = ("--agents", str(HISTORIES)) if command_line[0] == "rerun" else ()
            ran = await command("--address", env.server.address, *command_line, *agents)
            assert (ran.code, f"such as {invocation} for the first one of a session" in ran.err, ran.out) == (
                6,
                True,
                "",
            ), command_line


async def test_a_missing_invocation_of_a_comparison_is_named(serve: Serve) -> None:
    """The error of `diff` names the invocation that does not exist."""
    async with serve(Agent(name="clerk", model=ScriptedModel(says("Hello.")))) as env:
        first = await start_and_finish(env.client.start("clerk", "go"))
        ran = await command("--address", env.server.address, "diff", first.id, "absent-one")
    assert (ran.code, "Invocation 'absent-one' not found" in ran.err) == (6, True)


async def test_a_called_agent_is_addressed_by_its_call(serve: Serve, tmp_path: Path) -> None:
    """The error for an unknown call lists the known ones."""
    from waystation.tools.agent_tool import AgentTool

    counter = Agent(name="counter", model=ScriptedModel(says("It is 4.")))
    agent = Agent(
        name="clerk",
        model=ScriptedModel(calls(("counter", {"request": "count"})), says("four")),
        tools=[AgentTool(counter)],
    )
    async with serve(agent) as env:
        invocation = await start_and_finish(env.client.start("clerk", "go"))
        server = "--address", env.server.address
        ran = await command(*server, "events", invocation.id, "--called", "fc-1")
        assert ("counter: It is 4." in ran.out, "clerk" in ran.out) == (True, False)
        path = tmp_path / "kept.json"
        path.write_text((await command(*server, "history", invocation.id)).out)
    assert "counter: It is 4." in (await command("events", str(path), "--called", "fc-1")).out
    ran = await command("events", str(path), "--called", "fc-9")
    assert (ran.code, "Calls that called an agent: fc-1" in ran.err) == (6, True)


async def test_a_running_invocation_has_moments(serve: Serve) -> None:
    """`--at` works on a running invocation; following a moment is refused."""
    model = ScriptedModel(calls(("pay", {"amount": 5})), says("Paid."))

    def pay(amount: int) -> dict[str, int]:
        return {"paid": amount}

    async with serve(Agent(name="clerk", model=model, tools=[FunctionTool(pay, require_confirmation=True)])) as env:
        invocation = await start_and_wait(env.client.start("clerk", "go"), "fc-1")
        server = "--address", env.server.address
        assert (await command(*server, "pending", invocation.id, "--at", "1", "--json")).records == []
        assert "still pending" in (await command(*server, "pending", invocation.id, "--at", "3")).out
        assert "  3  " in (await command(*server, "events", invocation.id)).out
        refused = await command(*server, "events", invocation.id, "--at", "1", "--follow")
        assert (refused.code, "only a running invocation can be followed" in refused.err) == (2, True)
        await approve_and_finish(invocation)

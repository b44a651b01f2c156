"""The command `waystation rerun`: its questions, refusals and output."""

import json
from pathlib import Path

import pytest

from tests.paths import HISTORIES
from tests.programs import command
from tests.unit.cli.test_asking import Types
from waystation.cli import reruns

AGENT = """
from waystation import Agent, FunctionTool
from waystation.testing import FunctionModel


def add(a: int, b: int, tool_context) -> dict:
    tool_context.state["sum"] = a + b
    return {"sum": a + b}


def pay(amount: int) -> dict:
    return {"paid": amount}


root_agent = Agent(
    name="clerk",
    instruction="Be brief.",
    model=FunctionModel(lambda request: f"{request.system_instruction!r} {request.contents}"),
    tools=[FunctionTool(add, effect="read"), FunctionTool(pay, require_confirmation=True)],
)
"""


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a folder with the agent of the corpus, under another name."""
    name = f"clerk_{tmp_path.name.replace('-', '_')}"
    package = tmp_path / "agents" / name
    package.mkdir(parents=True)
    (package / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(package.parent)
    return str(package.parent)


def history_file(name: str) -> str:
    """Return the file of a history of the corpus."""
    return str(HISTORIES / f"{name}.json")


async def test_a_reading_tool_runs_without_a_question(agents: str) -> None:
    """A tool with the effect `read` runs without confirmation, and the JSON has the recorded and the new result."""
    ran = await command("rerun", history_file("one-tool"), "3", "--agents", agents, "--json")
    (record,) = ran.records
    assert ran.code == 0
    assert record["recorded"]["response"] == record["now"]["response"] == {"sum": 3}
    assert [each["place"] for each in record["differences"]] == ["state.temp:last"]


async def test_other_arguments_may_be_passed(agents: str) -> None:
    """The result for other arguments is compared with the recorded result."""
    ran = await command(
        "rerun", history_file("one-tool"), "3", "--agents", agents, "--args", '{"a": 5, "b": 5}', "--json"
    )
    assert ran.records[0]["now"]["response"] == {"sum": 10}


async def test_a_tool_with_an_effect_needs_a_confirmation(agents: str) -> None:
    """Without a terminal, a tool with an effect runs only with `--yes`."""
    refused = await command("rerun", history_file("confirmation-edited"), "5", "--agents", agents)
    assert refused.code == 2
    assert "`once`" in refused.err
    assert "--yes" in refused.err
    ran = await command("rerun", history_file("confirmation-edited"), "5", "--agents", agents, "--yes")
    assert ran.code == 0
    assert ran.out.startswith("as recorded  pay(amount=5)")


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("", 1)])
async def test_a_person_is_asked_first(agents: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int) -> None:
    """The question shows the call, its effect and its idempotency key."""
    monkeypatch.setattr(reruns, "find_person", lambda: Types(typed))
    ran = await command("rerun", history_file("confirmation-edited"), "5", "--agents", agents)
    assert ran.code == code
    assert "pay(amount=5)" in ran.out
    assert "effect is `once`" in ran.out
    assert "confirmation-edited/fc-1" in ran.out
    assert ("as recorded" in ran.out) == (code == 0)


@pytest.mark.parametrize(("typed", "code"), [("pay", 0), ("y", 5)])
async def test_an_unapproved_call_is_confirmed_by_its_name(
    agents: str, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    """The person must type the name of the tool, because `y` is not enough."""
    monkeypatch.setattr(reruns, "find_person", lambda: Types(typed))
    ran = await command("rerun", history_file("confirmation-rejected"), "2", "--agents", agents)
    assert ran.code == code
    assert "This call was never approved: someone rejected it." in ran.out


async def test_a_script_needs_the_option_unapproved(agents: str) -> None:
    """`--yes` covers only approved calls."""
    command_line = ("rerun", history_file("confirmation-rejected"), "2", "--agents", agents, "--yes")
    refused = await command(*command_line)
    assert (refused.code, refused.out) == (5, "")
    assert "never approved" in refused.err
    assert (await command(*command_line, "--unapproved")).code == 0


async def test_a_prompt_is_written_edited_and_sent(agents: str, tmp_path: Path) -> None:
    """The written file holds the complete prompt."""
    file = tmp_path / "prompt.json"
    wrote = await command("rerun", history_file("one-tool"), "4", "--agents", agents, "--write-prompt", str(file))
    assert (wrote.code, wrote.out) == (0, "")
    held = json.loads(file.read_text())
    assert held["systemInstruction"].startswith("Be brief.")
    held["systemInstruction"] = "Rhyme."
    file.write_text(json.dumps(held))
    ran = await command("rerun", history_file("one-tool"), "4", "--agents", agents, "--prompt", str(file), "--json")
    assert ran.records[0]["now"]["text"].startswith("'Rhyme.' [{")
    assert [each["place"] for each in ran.records[0]["edited"]] == ["systemInstruction"]


async def test_a_missing_agent_is_named_with_the_option(tmp_path: Path) -> None:
    """The message names `--agents`, not a worker."""
    package = tmp_path / f"other_{tmp_path.name.replace('-', '_')}"
    package.mkdir()
    (package / "agent.py").write_text(
        "from waystation.agents import Agent\nroot_agent = Agent(name='other', model='m')\n"
    )
    ran = await command("rerun", history_file("one-tool"), "4", "--agents", str(tmp_path))
    assert ran.code == 2
    assert ran.err == ("waystation: The --agents folders contain no agent 'clerk'. They contain: other.\n")


async def test_a_prompt_is_edited_in_an_editor(agents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edited prompt is sent."""
    monkeypatch.setattr(
        reruns,
        "find_person",
        lambda: Types(editor=lambda text: text.replace("Be brief.", "Rhyme.").replace('"3"', '"4"')),
    )
    ran = await command("rerun", history_file("one-tool"), "2", "--model-call", "--edit", "--agents", agents)
    assert ran.code == 0
    assert ran.out.startswith("edited  systemInstruction\ndiffers  model call 1 of clerk")


async def test_a_prompt_broken_in_an_editor_is_edited_again(agents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The editor opens again with the invalid text and the error; giving up runs nothing."""
    texts: list[str] = []

    def editor(text: str) -> str:
        texts.append(text)
        return text.replace("Be brief.", 'Rhyme."') if len(texts) == 1 else text.replace('Rhyme."', "Rhyme.")

    command_line = ("rerun", history_file("one-tool"), "2", "--model-call", "--edit", "--agents", agents)
    monkeypatch.setattr(reruns, "find_person", lambda: Types("y", editor=editor))
    ran = await command(*command_line)
    assert ran.code == 0
    assert ran.out.startswith("The prompt is not valid: Invalid JSON: ")
    assert "edited  systemInstruction" in ran.out
    assert 'Rhyme."' in texts[1]
    monkeypatch.setattr(reruns, "find_person", lambda: Types("n", editor=lambda _: "{"))
    assert (await command(*command_line)).err == "waystation: Nothing was run.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("one-tool", "9"), 6, "no event 9"),
        (("one-tool", "1"), 6, "no tool call"),
        (("parallel-tools", "2"), 6, "--call"),
        (("one-tool", "3", "--call", "fc-1", "--edit"), 2, "--call is for tool calls and --edit is for model calls"),
        (("one-tool", "4", "--prompt", "nowhere.json"), 2, "cannot be read"),
        (("one-tool", "4", "--edit"), 2, "requires a terminal"),
        (("called-agent", "2"), 6, "calls an agent"),
    ],
)
async def test_an_impossible_rerun_is_refused(agents: str, arguments: tuple[str, ...], code: int, problem: str) -> None:
    """One line has the cause and the remedy."""
    name, *rest = arguments
    ran = await command("rerun", history_file(name), *rest, "--agents", agents)
    assert (ran.code, ran.out) == (code, "")
    assert problem in ran.err


async def test_an_unreadable_prompt_is_named(agents: str, tmp_path: Path) -> None:
    """A missing file and a binary file are refused."""
    absent, binary = tmp_path / "absent", tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe{")
    for file, cause in ((absent, "No such file or directory"), (binary, "it is not UTF-8 text")):
        ran = await command(
            "rerun", history_file("one-tool"), "2", "--agents", agents, "--model-call", "--prompt", str(file)
        )
        assert (ran.code, ran.err) == (2, f"waystation: {str(file)!r} cannot be read: {cause}.\n")


async def test_a_folder_without_the_agent_is_named(tmp_path: Path) -> None:
    """Nothing runs without the agent."""
    none = str(tmp_path / "none")
    for arguments in (("rerun", history_file("one-tool"), "3"), ("prompt", history_file("one-tool"), "--at", "3")):
        ran = await command(*arguments, "--agents", none)
        assert ran.code == 2
        assert f"waystation: {none}: the folder does not exist" in ran.err

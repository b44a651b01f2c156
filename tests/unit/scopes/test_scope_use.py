"""Which agents use `user:` and `app:` state is told by their source."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from waystation.agents import Agent, SequentialAgent
from waystation.agents.registry import Registry, discover
from waystation.agents.scope_use import uses_scopes
from waystation.apps import App
from waystation.models import BaseLlm
from waystation.testing import ScriptedModel


def model() -> BaseLlm:
    """Any."""
    return ScriptedModel()


def module(path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of that source."""
    (path / f"{path.name}_prefs.py").write_text(source)
    monkeypatch.syspath_prepend(str(path))
    return __import__(f"{path.name}_prefs")


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ('tool_context.state["user:name"] = 1', True),
        ("tool_context.state['app:name'] = 1", True),
        ('tool_context.state[f"user:{x}"] = 1', True),
        ("tool_context.state[State.USER_PREFIX + 'x'] = 1", True),
        ('tool_context.state["username"] = 1', False),
        ('print("user: hello")', False),
        ('tool_context.state["temp:x"] = 1', False),
    ],
)
def test_a_tool_is_judged_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, uses: bool) -> None:
    """Quoted keys count, prose does not."""
    tool = module(tmp_path, f"def remember(x: str, tool_context):\n    {line}\n", monkeypatch).remember
    assert uses_scopes(Agent(name="a", model=model(), tools=[tool]), ()) is uses
    assert uses_scopes(Agent(name="a", model=model(), before_model_callback=[tool]), ()) is uses


@pytest.mark.parametrize(
    "fields", [{"instruction": "Serve {user:name}."}, {"output_key": "app:answer"}, {"instruction": "{ app:x? }"}]
)
def test_what_an_agent_declares_counts_wherever_it_comes_from(fields: dict[str, Any]) -> None:
    """Also in an agent below the root."""
    agent = Agent(name="a", model=model(), **fields)
    assert uses_scopes(SequentialAgent(name="root", sub_agents=[agent]), ())


def test_code_that_cannot_be_read_counts() -> None:
    """Nobody knows what it does."""
    space: dict[str, Any] = {"__name__": "made_up"}
    exec("def tool(x: str): pass", space)
    assert uses_scopes(Agent(name="a", model=model(), tools=[space["tool"]]), ())


def test_a_package_is_judged_by_all_its_files(tmp_path: Path) -> None:
    """A tool may leave it to another module."""
    for name, text in (("plain_pkg", "x"), ("scoped_pkg", "user:x")):
        package = tmp_path / name
        (package / "sub").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "sub" / "keys.py").write_text(f'KEY = "{text}"\n')
        (package / "agent.py").write_text(
            f"from waystation import Agent\nroot_agent = Agent(name={name!r}, model='gemini-2.5-flash')\n"
        )
    registry, problems = discover([tmp_path])
    assert problems == []
    assert {name: root.state_scopes for name, root in registry.roots.items()} == {
        "plain_pkg": False,
        "scoped_pkg": True,
    }


@pytest.mark.parametrize("said", [True, False])
def test_an_app_has_the_last_word(said: bool) -> None:
    """Whatever its source mentions."""
    app = App(name="x", root_agent=Agent(name="a", model=model(), output_key="user:x"), state_scopes=said)
    assert Registry.of(app).roots["a"].state_scopes is said

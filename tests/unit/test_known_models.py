"""The table of models, the worker's warnings about models, and the models that documents name."""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tests.paths import ROOT
from waystation.activities.model_choice import list_model_warnings
from waystation.agents import Agent, LlmAgent
from waystation.apps.registry import Registry
from waystation.core.budget import Price
from waystation.models.fallback_model import FallbackModel
from waystation.models.google_llm import Gemini
from waystation.models.known_models import known_models
from waystation.testing import ScriptedModel

SUFFIXES = (".md", ".py", ".pyi", ".toml", ".yaml", ".yml", ".json")
TABLE = ROOT / "waystation" / "models" / "models.toml"
NAME = re.compile(r"\b(?:gemini-\d[\w.]*(?:-(?:flash|pro|lite|preview)\b)*|gpt-\d[\w.-]*\w|claude-[a-z]+-\d[\w-]*)")
"""A pattern for names of models in prose and code."""


@pytest.mark.parametrize(
    "name",
    [
        "gemini-3.5-flash",
        "gemini-3.5-flash-001",
        "models/gemini-3.5-flash",
        "gemini/gemini-3.5-flash",
        "publishers/google/models/gemini-3.5-flash",
    ],
)
def test_a_model_is_found_under_each_form_of_its_name(name: str) -> None:
    """A provider's prefix and a fixed version do not change the price."""
    row = known_models().find(name)
    assert row is not None
    assert (row.name, row.price) == ("gemini-3.5-flash", Price(prompt=1.5, cached=0.15, output=9))


@pytest.mark.parametrize(
    "name", ["gemini-3.5-flash-tuned", "openrouter/gemini-3.5-flash", "gemini-3", "claude-sonnet-4-55"]
)
def test_a_similar_name_is_another_model(name: str) -> None:
    """A name must match exactly, because a wrong price is worse than none."""
    assert known_models().find(name) is None


def test_dated_versions_belong_to_the_longest_matching_name() -> None:
    """The name `claude-sonnet-4-5-20250929` is version 4.5, and `claude-sonnet-4-20250514` is version 4."""
    names = [
        "claude-sonnet-4-5-20250929",
        "claude-sonnet-4-20250514",
        "gpt-4o-2024-11-20",
        "anthropic/claude-haiku-4-5",
    ]
    rows = [known_models().find(name) for name in names]
    assert [row and row.name for row in rows] == ["claude-sonnet-4-5", "claude-sonnet-4", "gpt-4o", "claude-haiku-4-5"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gemini-3.5-flash", None),
        (
            "gemini-2.5-flash",
            "the model 'gemini-2.5-flash' is retired on 2026-12-01. Use 'gemini-3.5-flash-lite'.",
        ),
        ("gemini-2.0-flash", "the model 'gemini-2.0-flash' was retired on 2026-06-01. Use 'gemini-3.5-flash'."),
        (
            "gpt-6-luna",
            "the price of the model 'gpt-6-luna' is not known. Give it a price in each budget that limits the cost.",
        ),
        (
            "gemini-3.5-flesh",
            "the model 'gemini-3.5-flesh' is not in the table of known models of 2026-11-23. Check the name. Only "
            "budgets that have a price for it count its cost.",
        ),
    ],
)
def test_a_worker_warns_of_a_retired_unpriced_or_unknown_model(
    monkeypatch: pytest.MonkeyPatch, name: str, problem: str | None
) -> None:
    """The warning names the agent, the date and the successor, or says that the cost is unknown."""
    for variable in ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    registry = Registry.of(Agent(name="writer", model=name))
    warnings = list(list_model_warnings(registry, date(2026, 11, 23)))
    assert warnings == ([f"Agent 'writer': {problem}"] if problem else [])


def test_a_worker_warns_of_the_models_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning covers the models of a `FallbackModel`, but not objects without a name."""
    monkeypatch.delenv("GOOGLE_GEMINI_BASE_URL", raising=False)
    fallback = Agent(name="a", model=FallbackModel(["gemini-3.5-flash", Gemini(model="gemini-2.5-pro")]))
    local = Agent(name="b", model=Gemini(model="my-own"), sub_agents=[Agent(name="c", model=ScriptedModel())])
    warnings = [*list_model_warnings(Registry.of(fallback), date(2026, 11, 23))]
    warnings += list_model_warnings(Registry.of(local), date(2026, 11, 23))
    assert [warning.partition(".")[0] for warning in warnings] == [
        "Agent 'a': the model 'gemini-2",
        "Agent 'b': the model 'my-own' is not in the table of known models of 2026-11-23",
    ]


def documents() -> Iterator[Path]:
    """Return documents, examples and everything else that users read, copy or run."""
    yield from (ROOT / "README.md", ROOT / "CHANGELOG.md")
    for folder in ("docs", "examples", "deploy", "waystation", "activities", "tools", "workflows"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path != TABLE)


def test_documents_name_only_current_models() -> None:
    """No document or example names a model that is unknown or that will soon be retired."""
    table, names = known_models(), set[str]()
    for path in documents():
        for name in NAME.findall(path.read_text(encoding="utf-8")):
            names.add(name)
            row = table.find(name)
            assert row is not None, f"{path} names {name}, which is not in models.toml"
            assert row.retired is None, f"{path} names {name}, which is retired on {row.retired}"
    assert LlmAgent.DEFAULT_MODEL in names


def test_a_successor_is_a_current_model() -> None:
    """A successor is not retired itself."""
    table = known_models()
    for row in table.rows.values():
        successor = table.rows[row.successor] if row.successor else None
        assert successor is None or successor.retired is None, row.name

"""Validation errors name value, reason and remedy in plain words, without pydantic's layout."""

from typing import Any

import pytest
from pydantic import ValidationError

from waystation import ApprovalPolicy, ApprovalRule
from waystation.agents import Agent, LoopAgent
from waystation.agents.run_config import RunConfig
from waystation.apps import App, EventsCompactionConfig
from waystation.auth import APIKey, AuthConfig, AuthCredential
from waystation.core.budget import Budget
from waystation.core.naming import describe_errors, with_article


@pytest.mark.parametrize(
    ("value", "named"), [(3, "an int"), ("x", "a str"), (None, "None"), (Agent(name="b"), "an LlmAgent")]
)
def test_a_kind_of_value_has_its_article(value: object, named: str) -> None:
    """The article `a` or `an` follows the pronunciation."""
    assert with_article(value) == named


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (Agent, dict(name=3), "`name` is 3; use text"),
        (Agent, {}, "`name` is missing"),
        (Agent, dict(name="a", tool=[]), "there is no field `tool`; did you mean `tools`?"),
        (Agent, dict(name="a", zzz=1), "there is no field `zzz`"),
        (Agent, dict(name="a", tools="f"), "`tools` is 'f'; use a list"),
        (Agent, dict(name="a", model=3), "`model` is 3; use text or an instance of BaseLlm"),
        (Agent, dict(name="a", sub_agents=[3]), "`sub_agents.0` is 3; use an instance of BaseAgent"),
        (Agent, dict(name="a", input_schema=dict), "`input_schema` is <class 'dict'>; use a subclass of BaseModel"),
        (Agent, dict(name="a", include_contents="x"), "`include_contents` is 'x'; use 'default' or 'none'"),
        (Agent, dict(name="a", before_model_callback=3), "`before_model_callback` is 3; use a function or a list"),
        (Agent, dict(name="a", before_model_callback=[3]), "`before_model_callback.0` is 3; use a function"),
        (Agent, dict(name="a", disallow_transfer_to_peers="x"), "`disallow_transfer_to_peers` is 'x'; use True or"),
        (LoopAgent, dict(name="a", max_iterations="x"), "`max_iterations` is 'x'; use a whole number"),
        (App, dict(name="a", root_agent=3), "`root_agent` is 3; use an instance of BaseAgent"),
        (
            EventsCompactionConfig,
            dict(compaction_interval=0, overlap_size=-1),
            "`compaction_interval` is 0; use more than 0; `overlap_size` is -1; use at least 0",
        ),
        (RunConfig, dict(max_llm_calls="x"), "`max_llm_calls` is 'x'; use a whole number"),
        (Budget, dict(max_cost="x"), "`max_cost` is 'x'; use a number"),
        (Budget, dict(prices=3), "`prices` is 3; use a dictionary"),
        (ApprovalPolicy, dict(quorum=0), "`quorum` is 0; use at least 1"),
        (ApprovalPolicy, dict(deadline=-1), "`deadline` is -1; use more than datetime.timedelta(0)"),
        (ApprovalRule, dict(over=3), "`policy` is missing; `over` is 3; use a dictionary"),
        (
            AuthConfig,
            dict(auth_scheme=3),
            "`auth_scheme` is an int; use an instance of APIKey or an instance of HTTPBearer or",
        ),
        (APIKey, dict(in_="x", name="k"), "`in_` is 'x'; use 'query', 'header' or 'cookie'"),
        (AuthCredential, dict(auth_type="hunter2"), "`auth_type` is a str; use 'apiKey', 'http', "),
    ],
)
def test_a_validation_error_names_value_and_remedy(kind: Any, values: dict[str, Any], text: str) -> None:
    """The error omits the value of a type that may contain a credential."""
    with pytest.raises(ValidationError) as refused:
        kind(**values)
    description = describe_errors(refused.value, Agent.model_fields)
    assert description.startswith(text)
    assert "pydantic" not in description

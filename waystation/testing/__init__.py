"""Test agents on real parts: a Temporal server, a worker, scripted models, scripted people, a fake Gemini."""

from waystation.testing.checks import assert_projection_matches, assert_replays
from waystation.testing.environment import AgentEnvironment
from waystation.testing.fake_gemini import FakeGemini
from waystation.testing.human import ScriptedHuman
from waystation.testing.models import FunctionModel, ScriptedModel, calls, latest_turn, responses, says, user_text

__all__ = [
    "AgentEnvironment",
    "FakeGemini",
    "FunctionModel",
    "ScriptedHuman",
    "ScriptedModel",
    "assert_projection_matches",
    "assert_replays",
    "calls",
    "latest_turn",
    "responses",
    "says",
    "user_text",
]

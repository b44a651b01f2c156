from waystation.testing.checks import (
    Replays,
    assert_invocation_holds,
    assert_keeps_replaying,
    assert_projection_matches,
    assert_replays,
    keeps_replaying,
)
from waystation.testing.environment import AgentEnvironment, serving
from waystation.testing.fake_gemini import FakeGemini
from waystation.testing.human import ScriptedHuman
from waystation.testing.models import FunctionModel, ScriptedModel, calls, latest_turn, responses, says, user_text
from waystation.testing.people import Machine, People, VerifiedPerson
from waystation.testing.time_skipping import Clock, TimeNotSkipped

__all__ = [
    "AgentEnvironment",
    "Clock",
    "FakeGemini",
    "FunctionModel",
    "Machine",
    "People",
    "Replays",
    "ScriptedHuman",
    "ScriptedModel",
    "TimeNotSkipped",
    "VerifiedPerson",
    "assert_invocation_holds",
    "assert_keeps_replaying",
    "assert_projection_matches",
    "assert_replays",
    "calls",
    "keeps_replaying",
    "latest_turn",
    "responses",
    "says",
    "serving",
    "user_text",
]

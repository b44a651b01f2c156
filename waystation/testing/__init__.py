"""Test agents on real parts: a Temporal server, a worker, scripted models, scripted approvers, a fake Gemini."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.testing.checks import Replays as Replays
    from waystation.testing.checks import assert_invocation_holds as assert_invocation_holds
    from waystation.testing.checks import assert_projection_matches as assert_projection_matches
    from waystation.testing.checks import assert_replays as assert_replays
    from waystation.testing.environment import AgentEnvironment as AgentEnvironment
    from waystation.testing.fake_gemini import FakeGemini as FakeGemini
    from waystation.testing.human import ScriptedHuman as ScriptedHuman
    from waystation.testing.incidents import assert_keeps_replaying as assert_keeps_replaying
    from waystation.testing.incidents import keeps_replaying as keeps_replaying
    from waystation.testing.models import FunctionModel as FunctionModel
    from waystation.testing.models import ScriptedModel as ScriptedModel
    from waystation.testing.models import calls as calls
    from waystation.testing.models import latest_turn as latest_turn
    from waystation.testing.models import responses as responses
    from waystation.testing.models import says as says
    from waystation.testing.models import user_text as user_text
    from waystation.testing.serving import serving as serving

__all__ = [
    "AgentEnvironment",
    "FakeGemini",
    "FunctionModel",
    "Replays",
    "ScriptedHuman",
    "ScriptedModel",
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

_EXPORTS = {
    "waystation.testing.checks": "Replays assert_invocation_holds assert_projection_matches assert_replays",
    "waystation.testing.environment": "AgentEnvironment",
    "waystation.testing.fake_gemini": "FakeGemini",
    "waystation.testing.human": "ScriptedHuman",
    "waystation.testing.incidents": "assert_keeps_replaying keeps_replaying",
    "waystation.testing.models": "FunctionModel ScriptedModel calls latest_turn responses says user_text",
    "waystation.testing.serving": "serving",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)

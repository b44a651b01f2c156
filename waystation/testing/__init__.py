"""Test agents on real parts: a Temporal server, a worker, scripted models, scripted approvers, a fake Gemini."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
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
    "waystation.testing.checks": (
        "Replays assert_invocation_holds assert_keeps_replaying assert_projection_matches assert_replays "
        "keeps_replaying"
    ),
    "waystation.testing.environment": "AgentEnvironment serving",
    "waystation.testing.fake_gemini": "FakeGemini",
    "waystation.testing.human": "ScriptedHuman",
    "waystation.testing.models": "FunctionModel ScriptedModel calls latest_turn responses says user_text",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)

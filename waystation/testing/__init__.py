"""Test agents on real parts: a Temporal server, a worker, scripted models, scripted people, a fake Gemini.

Each name is imported when it is first used: pytest loads the plugin in this package wherever Waystation is installed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.testing.checks import assert_invocation_holds, assert_projection_matches, assert_replays
    from waystation.testing.environment import AgentEnvironment
    from waystation.testing.fake_gemini import FakeGemini
    from waystation.testing.human import ScriptedHuman
    from waystation.testing.incidents import assert_keeps_replaying, keeps_replaying
    from waystation.testing.models import FunctionModel, ScriptedModel, calls, latest_turn, responses, says, user_text
    from waystation.testing.serving import serving

__all__ = [
    "AgentEnvironment",
    "FakeGemini",
    "FunctionModel",
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

_NAMES_BY_MODULE = {
    "checks": "assert_invocation_holds assert_projection_matches assert_replays",
    "environment": "AgentEnvironment",
    "fake_gemini": "FakeGemini",
    "human": "ScriptedHuman",
    "incidents": "assert_keeps_replaying keeps_replaying",
    "models": "FunctionModel ScriptedModel calls latest_turn responses says user_text",
    "serving": "serving",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


if not TYPE_CHECKING:  # where it would make every misspelt name acceptable

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return found

"""During a deployment, workers of an earlier version may receive activities that they do not know."""

import pytest
from pydantic import ValidationError

from waystation.core.contract import ToolCallInput, VerificationInput
from waystation.core.payload import decode


def test_a_verification_is_not_taken_for_a_tool_call() -> None:
    """An earlier worker does not run a tool call that is only to be verified."""
    params = VerificationInput(at=1, new=(), ref="s1", call="fc-1")
    with pytest.raises(ValidationError):
        ToolCallInput.model_validate(decode(params.encode()))

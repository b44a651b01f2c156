"""Workers of an earlier version may receive activities that they do not know during a deployment."""

import pytest
from pydantic import ValidationError

from waystation.core.contract import ToolCallInput, VerificationInput
from waystation.core.payload import decode


def test_a_verification_is_not_taken_for_a_tool_call() -> None:
    """Otherwise the dynamic activity of an earlier worker would run a call that is only to be verified."""
    params = VerificationInput(at=1, new=(), ref="s1", call="fc-1")
    with pytest.raises(ValidationError):
        ToolCallInput.model_validate(decode(params.encode()))

"""Workers of an earlier version, during a deploy, take up activities that they do not know."""

import pytest
from pydantic import ValidationError

from waystation.core import ToolCallInput, VerificationInput, decode


def test_what_is_no_tool_call_is_not_taken_for_one() -> None:
    """The dynamic activity of such a worker would carry out the call that is only to be verified."""
    given = VerificationInput(at=1, new=(), ref="s1", call="fc-1")
    with pytest.raises(ValidationError):
        ToolCallInput.model_validate(decode(given.encode()))

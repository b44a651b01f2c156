"""Settings of an app. ADK has them in `google.adk.apps.app`, from where they are imported."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from waystation.apps.base_events_summarizer import BaseEventsSummarizer


class ResumabilityConfig(BaseModel):
    """Whether invocations can be resumed. Accepted and without effect: here every one can."""

    is_resumable: bool = False


class EventsCompactionConfig(BaseModel):
    """When older events are summarised, so that prompts stay small. Source: `apps/_configs.py` of ADK 2.13."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    summarizer: BaseEventsSummarizer | None = None
    """What writes summaries; the model of the agent that is about to be asked unless given."""
    compaction_interval: int | None = Field(default=None, gt=0)
    """After how many further invocations of a session a summary is due."""
    overlap_size: int | None = Field(default=None, ge=0)
    """How many invocations before those a summary covers once more."""
    token_threshold: int | None = Field(default=None, gt=0)
    """From how many tokens of the prompt on a summary is due. Checked before each call of a model."""
    event_retention_size: int | None = Field(default=None, ge=0)
    """How many of the newest events then stay as they are."""

    @model_validator(mode="after")
    def _check_triggers(self) -> Self:
        if (self.token_threshold is None) != (self.event_retention_size is None):
            raise ValueError("token_threshold and event_retention_size must be set together.")
        if (self.compaction_interval is None) != (self.overlap_size is None):
            raise ValueError("compaction_interval and overlap_size must be set together.")
        if self.token_threshold is None and self.compaction_interval is None:
            raise ValueError(
                "At least one compaction trigger must be configured: the token-threshold pair or the sliding-window"
                " pair."
            )
        return self

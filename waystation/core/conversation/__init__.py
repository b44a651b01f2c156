"""Conversations, prompts and summaries: what agents and their models see of a log."""

from waystation.core.conversation import prompt
from waystation.core.conversation.compaction import ConversationView, SummaryRange, estimate
from waystation.core.conversation.conversation import Conversation, Transcript
from waystation.core.conversation.prompt import BEGIN_QUOTE, END_QUOTE, PREAMBLE

__all__ = [
    "BEGIN_QUOTE",
    "END_QUOTE",
    "PREAMBLE",
    "Conversation",
    "ConversationView",
    "SummaryRange",
    "Transcript",
    "estimate",
    "prompt",
]

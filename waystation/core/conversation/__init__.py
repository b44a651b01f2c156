"""Events, prompts and summaries: the parts of a conversation that agents and their models see."""

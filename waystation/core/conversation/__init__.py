"""Events, prompts and summaries: what agents and their models see."""

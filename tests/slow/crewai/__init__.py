"""CrewaiTool with the real crewai, which needs an environment of its own."""

"""Run one tool call: the activity `<agent>.<tool>`, and the callbacks around the tool."""

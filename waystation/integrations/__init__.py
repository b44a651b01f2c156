"""Where ADK has `google.adk.integrations`."""

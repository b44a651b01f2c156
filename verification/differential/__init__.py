"""The same scenario on google-adk and on Waystation, compared."""

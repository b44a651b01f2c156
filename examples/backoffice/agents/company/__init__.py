"""Code that the agents share."""

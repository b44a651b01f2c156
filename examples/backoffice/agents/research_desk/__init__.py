"""Questions about rules and suppliers."""

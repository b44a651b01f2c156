"""Count the google-adk agents of a folder that run on Waystation. Needs the environment that has google-adk."""

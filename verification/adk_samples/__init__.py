"""Agents of google-adk from a folder, counted by what they do here. Needs the environment that has google-adk."""

"""Tests of interfaces for other protocols, with their official clients."""

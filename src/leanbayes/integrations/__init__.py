"""Adapters for the tools that people already train with. They are on their way."""

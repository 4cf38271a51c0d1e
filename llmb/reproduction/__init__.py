"""Somebody else's run done again: what differs, the same configuration, and whether it agrees."""

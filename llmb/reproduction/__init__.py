"""Reproduction of a recorded run: differences, same configuration, agreement of the figures."""

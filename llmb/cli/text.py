"""Text of strangers, made fit for a terminal: nothing in it can move a cursor or hide a word."""

from __future__ import annotations

from llmb.records.printable import printable

__all__ = ["printable"]

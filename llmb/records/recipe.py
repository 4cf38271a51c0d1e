"""The measured precision recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llmb.config import Frozen

FORWARD, INPUT, WEIGHT = "forward", "input gradient", "weight gradient"
ATTENTION = ("qk", "pv")
Amount = Annotated[float, Field(ge=0)]


class PairSeen(Frozen):
    kind: str
    direction: str
    layer: int = Field(ge=0)
    difference: Amount
    length: Amount

"""Hostile bundles: what a stranger could hand in, each as a path that ``llmb verify`` must refuse.

Every one starts from an honest bundle, so that it is refused for the attack and nothing else.
"""

from __future__ import annotations

from tests.attacks import evidence, folders, labour, manifests, published, records, zips
from tests.attacks.kinds import ATTACKS, honest_run, zip_of

__all__ = [
    "ATTACKS", "evidence", "folders", "honest_run", "labour", "manifests", "published", "records",
    "zip_of", "zips",
]  # fmt: skip

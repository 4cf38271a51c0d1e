"""Text for a terminal: untrusted text is escaped, and can move no cursor and hide no word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmb.records.printable import printable

if TYPE_CHECKING:
    from llmb.records.provenance import Provenance

__all__ = ["made_by", "printable"]


def made_by(found: Provenance) -> dict[str, Any]:
    """Return a record's llmb version, and whether this llmb computes the same, as JSON data."""
    return {
        "llmb_version": printable(found.version),
        "reference_digest": printable(found.digest),
        "family": printable(found.family),
        "llmb_version_here": found.version_here,
        "reference_digest_here": found.digest_here,
        "same_computation": found.is_same,
        # A reason per change to the family's code, if no change alters a number.
        "reasons": list(found.reasons or ()),
        "line": printable(str(found)),
    }

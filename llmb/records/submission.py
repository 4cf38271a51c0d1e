"""The submitter and system of a bundle, stated in the manifest and covered by a signature."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from llmb.config import Frozen
from llmb.records import member_names

#: MLPerf's categories: available to everybody, available within the next round, or neither.
#: Source: MLCommons, submission rules, "Availability Category".
Availability = Literal["available", "preview", "research"]

_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LONGEST_SLUG, _LONGEST_LINE = 60, 200


def slug_fault(text: str) -> str | None:
    """Return why ``text`` cannot be the id of a submitter or system, or None for a valid id.

    An id has letters of one alphabet in one case, so no two ids look alike. Example: ``box-8x``.
    """
    if _SLUG.fullmatch(text) is None:
        return "is not made of a-z and 0-9, with single dashes between them"
    if len(text) > _LONGEST_SLUG:
        return f"has more than {_LONGEST_SLUG} characters"
    return "is reserved on Windows" if member_names.part_fault(text) else None


def slug_of(text: str) -> str | None:
    """Return the id nearest to ``text``, None if no part of the text fits into an id.

    Example: ``Acme, Inc.`` gives ``acme-inc``.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_LONGEST_SLUG].rstrip("-")
    return slug if slug and slug_fault(slug) is None else None


def line_fault(text: str, longest: int = _LONGEST_LINE) -> str | None:
    """Return why ``text`` cannot be a name or address for people, or None for a valid text."""
    if not text.strip() or not text.isprintable():
        return "must be one line of printable text"
    if text != text.strip():
        return "begins or ends with a space"
    return f"has more than {longest} characters" if len(text) > longest else None


def _slug(text: str) -> str:
    fault = slug_fault(text)
    if fault is not None:
        raise ValueError(fault)
    return text


def _line(text: str) -> str:
    fault = line_fault(text)
    if fault is not None:
        raise ValueError(fault)
    return text


Slug = Annotated[
    str, Field(pattern=f"^{_SLUG.pattern}$", max_length=_LONGEST_SLUG), AfterValidator(_slug)
]
Line = Annotated[str, Field(min_length=1, max_length=_LONGEST_LINE), AfterValidator(_line)]


class Submission(Frozen):
    """The submitter and the system of a bundle; only a signature can confirm the statement."""

    #: Ids, and the names of the two folders that contain the bundle.
    submitter: Slug
    system: Slug
    #: Readable names beside the ids; None if not stated.
    organisation: Line | None = None
    system_name: Line | None = None
    availability: Availability | None = None
    #: Contact for questions: a mail address or a web page.
    contact: Line | None = None

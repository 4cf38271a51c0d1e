"""Names that show nothing, wherever in the name that is, are no names."""

from __future__ import annotations

import pytest

from llmb.records.member_names import part_fault


@pytest.mark.parametrize("blank", ["\u3164", "\u00a0", "\u2003"])
@pytest.mark.parametrize("name", ["{}", "Acme{}", "Ac{}me"])
def test_one_character_that_shows_nothing_is_too_many(name: str, blank: str) -> None:
    assert part_fault(name.format("")) is None or name == "{}"
    assert "shows nothing" in (part_fault(name.format(blank)) or "")

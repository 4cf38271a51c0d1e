"""A seed commitment is accepted only when revealed, well formed and true; the recipe makes one."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from llmb.errors import UsageError
from llmb.records import seed_commitment
from llmb.records.seed_commitment import SeedCommitment, parse
from tests import builders

PAGE = (Path(__file__).parents[3] / "docs" / "seed-commitment.md").read_text(encoding="utf-8")
GOOD = builders.seed_commitment()


def raw(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode()


def refusal(content: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        parse(content, "seed.json")
    message = str(caught.value)
    assert message.startswith("--seed-commitment: 'seed.json'")
    assert "\n" not in message
    return message


def test_a_revealed_commitment_is_read_word_for_word() -> None:
    found = parse(raw(), "seed.json")
    assert found.model_dump(mode="json", by_alias=True) == GOOD
    assert found.digest == found.commitment


def test_where_it_was_published_may_be_left_out() -> None:
    data = {name: value for name, value in GOOD.items() if name != "published_at"}
    assert parse(json.dumps(data).encode(), "seed.json").published_at is None


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("salt", ["00" * 16, "ff" * 64])
def test_every_seed_of_the_range_can_be_committed_to(seed: int, salt: str) -> None:
    found = parse(json.dumps(builders.seed_commitment(seed, salt)).encode(), "seed.json")
    assert (found.seed, found.salt) == (seed, salt)


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (["seed", "salt"], "no seed and no salt"),
        (["seed"], "no seed:"),
        (["salt"], "no salt:"),
    ],
)
@pytest.mark.parametrize("null", [True, False])
def test_a_commitment_alone_is_refused_as_not_revealed(
    hidden: list[str], words: str, null: bool
) -> None:
    data: dict[str, object] = {n: value for n, value in GOOD.items() if n not in hidden}
    data |= dict.fromkeys(hidden) if null else {}
    message = refusal(json.dumps(data).encode())
    assert words in message
    assert "not revealed yet" in message


@pytest.mark.parametrize("change", [{"seed": GOOD["seed"] + 1}, {"salt": "ab" * 16}])
def test_another_seed_or_salt_is_refused_with_both_hashes(change: dict[str, object]) -> None:
    given = GOOD | change
    digest = hashlib.sha256(f"llmb-seed:{given['seed']}:{given['salt']}".encode()).hexdigest()
    message = refusal(raw(**change))
    assert digest in message
    assert str(GOOD["commitment"]) in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("commitment", "0" * 63),
        ("commitment", str(GOOD["commitment"]).upper()),
        ("commitment", str(GOOD["commitment"]) + "\n"),
        ("commitment", 0),
        ("commitment", None),
        ("seed", str(GOOD["seed"])),
        ("seed", float(7)),
        ("seed", True),
        ("seed", -1),
        ("seed", 2**63),
        ("salt", "00" * 15),
        ("salt", "00" * 65),
        ("salt", "0" * 33),
        ("salt", "zz" * 16),
        ("salt", 16),
        ("committed_by", ""),
        ("committed_by", "  "),
        ("committed_by", "x" * 201),
        ("committed_by", "two\nlines"),
        ("committed_by", "\u202eknab"),
        ("committed_by", None),
        ("committed_by", ["me"]),
        ("published_at", "\x1b[2J"),
        ("published_at", 2026),
        ("comment", "a field nobody knows"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(field: str, value: object) -> None:
    assert f"field {field!r}" in refusal(raw(**{field: value}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not strict JSON"),
        (b"{", "not strict JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[]", "no seed commitment"),
        (b"7", "no seed commitment"),
        (b"{}", "no seed commitment"),
        (raw(schema="llmb.seed-commitment/2"), "llmb.seed-commitment/1"),
        (raw()[:-1] + b', "seed": 7}', "key 'seed' twice"),
        (raw(seed=10**30), "an integer of more than"),
        (raw()[:-1] + b', "x": NaN}', "NaN"),
        (raw()[:-1] + b', "x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper"),
        (raw() + b" " * seed_commitment.MAX_BYTES, "more than 16384 bytes"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_not_one_small_strict_document_is_refused(content: bytes, words: str) -> None:
    assert words in refusal(content)


def test_a_record_shows_no_more_of_a_strangers_words_than_a_file_may_hold() -> None:
    with pytest.raises(ValueError, match="printable"):
        SeedCommitment.model_validate(GOOD | {"committed_by": "\x1b]0;owned\x07"})


def test_the_example_of_the_documentation_is_a_true_commitment() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert parse(example.encode(), "example").committed_by.startswith("Example")


def test_the_recipe_of_the_documentation_makes_a_commitment_that_holds(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        ["sh", "-ec", recipe], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    _, seed, salt = (tmp_path / "secret.txt").read_text().split(":")
    data = GOOD | {"commitment": done.stdout[:64], "seed": int(seed), "salt": salt}
    assert parse(json.dumps(data).encode(), "made by hand").seed == int(seed)

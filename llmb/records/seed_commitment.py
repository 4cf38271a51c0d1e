"""A seed that a third party committed to by a hash and revealed later, and the file of the seed.

No file proves that the hash was published before the plugin was frozen: people have to check.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from llmb.config import JsonFile
from llmb.errors import BundleRefusedError, UsageError
from llmb.records import strict_json

SCHEMA: Literal["llmb.seed-commitment/1"] = "llmb.seed-commitment/1"
#: Longest document to read: people write commitments by hand.
MAX_BYTES = 16 * 2**10


def _plain(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("it must be one line of printable text")
    return text


Words = Annotated[str, Field(max_length=200), AfterValidator(_plain)]


class SeedCommitment(JsonFile):
    """A revealed commitment as written in the file; ``digest`` checks the hash."""

    schema_: Literal["llmb.seed-commitment/1"] = Field(alias="schema", default=SCHEMA)
    #: The sha256, in hex, that was published while the seed was unknown.
    commitment: str = Field(pattern=r"^[0-9a-f]{64}$")
    seed: int = Field(strict=True, ge=0, lt=2**63)
    #: 16 random bytes or more: without a salt the seed could be found by search.
    salt: str = Field(pattern=r"^([0-9a-f]{2}){16,64}$")
    committed_by: Words
    #: Place and time of the publication, as stated by the author.
    published_at: Words | None = None

    @property
    def digest(self) -> str:
        """The commitment computed from seed and salt."""
        return hashlib.sha256(f"llmb-seed:{self.seed}:{self.salt}".encode()).hexdigest()


def parse(raw: bytes, name: str) -> SeedCommitment:
    """Return the revealed commitment in the file contents ``raw``; ``name`` is for messages.

    Raises:
        UsageError: not strict JSON of this schema, not revealed yet, or seed and salt do not match
            the commitment.
    """
    try:
        if len(raw) > MAX_BYTES:
            raise BundleRefusedError(f"{name!r} has more than {MAX_BYTES} bytes")
        found = _commitment(strict_json.loads(raw, name), name)
    except BundleRefusedError as error:
        raise UsageError(f"--seed-commitment: {error}") from None
    if found.digest != found.commitment:
        raise UsageError(
            f"--seed-commitment: {name!r} holds another seed than the one committed to: "
            f"its seed and salt give {found.digest}, its commitment is {found.commitment}"
        )
    return found


def _commitment(data: Any, name: str) -> SeedCommitment:
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BundleRefusedError(f"{name!r} is no seed commitment: its schema is not {SCHEMA}")
    hidden = [field for field in ("seed", "salt") if data.get(field) is None]
    if hidden:
        raise BundleRefusedError(
            f"{name!r} has no {' and no '.join(hidden)}: the seed is not revealed yet; "
            "the run can be done once whoever committed to it has published both"
        )
    try:
        return SeedCommitment.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = str(first["loc"][0])
        raise BundleRefusedError(f"{name!r}: field {field!r}: {first['msg']}") from None

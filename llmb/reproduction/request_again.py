"""The request for a repetition: the recorded configuration, on the present machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmb import workloads
from llmb.config import DataSource, OptionValue, RunConfig, RunRequest, WeightsSource
from llmb.errors import UnavailableError, UsageError
from llmb.inputs.checkpoint import open_checkpoint
from llmb.inputs.contents import describe
from llmb.records.finding import RULES_VERSION, alike
from llmb.records.provenance import Provenance, provenance
from llmb.records.run_record import RunRecord
from llmb.reference import pins
from llmb.reproduction.install import install_hint


@dataclass(frozen=True)
class Places:
    """Choices of the user: paths of files here, device, values of new options."""

    data: str | None = None
    tokenizer: str | None = None
    weights: Path | None = None
    #: None: the device of the record. Example: ``cuda:1``.
    device: str | None = None
    #: Values of plugin options that are new since the original.
    options: Mapping[str, str] = field(default_factory=dict)


def request_of(record: RunRecord, places: Places | None = None) -> RunRequest:
    """Return the request that resolves to the configuration of ``record``, except for the seed.

    The seed is drawn anew. A recorded seed is public: a plugin's author could prepare for the
    weights and tokens of a known seed (rules.md requires fresh tokens).

    Raises:
        UnavailableError: no repetition is possible here: other rules, another computation of the
            model family, or a missing file of the original.
        UsageError: a given file differs from the original's file, or the original had no file; or
            a given option has a value in the original already.
    """
    places = places or Places()
    config = record.config
    _check_possible(record)
    own = {
        "plugin_options": _options(record, places),
        "device": places.device or _device(config),
        "precision": config.precision.name,
        "data": _data(record, places),
        "weights": _weights(record, places),
        "seed": None,
    }
    return RunRequest(**{**dict(config), **own})


def _device(config: RunConfig) -> str:
    """Return the device to request; several ranks request the type only, such as ``cuda``."""
    alone = config.parallelism.world_size == 1
    return config.device if alone else config.device.partition(":")[0]


def notes(record: RunRecord) -> tuple[str, ...]:
    """Return notes on a repetition of ``record``, such as the new seed, in sentences."""
    return tuple(_notes(record))


def _notes(record: RunRecord) -> Iterator[str]:
    made = _provenance(record)
    if (made.version, made.digest) != (made.version_here, made.digest_here):
        yield str(made)
    if record.class_ == "debug":
        yield f"the original is a debug run ({'; '.join(record.waivers)}): so is this one"
    if record.audit.verdict.value != "CONSISTENT":
        yield f"the original is {record.audit.verdict.value}: no repetition makes it REPRODUCED"
    yield "the seed is drawn afresh: the original's is known, and a plugin could be made for it"
    if record.batch_size_search is not None:
        yield (
            f"the original searched for its batch size and found {record.config.batch_size}: "
            "that is taken, without a search"
        )


def _check_possible(record: RunRecord) -> None:
    version = record.llmb_version
    if not alike(record.rules_version, RULES_VERSION):
        raise UnavailableError(
            f"the bundle is of rules {record.rules_version}, this llmb has rules {RULES_VERSION}: "
            f"their figures cannot be compared; llmb {version} made it"
        )
    made = _provenance(record)
    if not made.is_same:
        install = install_hint("llmb", version) or f"use llmb {version}"
        raise UnavailableError(f"the bundle was {made}: {install}")
    try:
        workloads.of(record.config)
    except UsageError as error:
        raise UnavailableError(f"{error} (the bundle was made by llmb {version})") from None


def _provenance(record: RunRecord) -> Provenance:
    return provenance(record, pins.reference_digest(pins.actual_digests()))


def _options(record: RunRecord, places: Places) -> dict[str, str]:
    theirs = record.config.plugin_options
    for name in places.options:
        if name in theirs:
            raise UsageError(
                f"-O {name}: the original has it as {_text(theirs[name])!r}, and so has a "
                "reproduction; llmb run with another value makes a run of its own"
            )
    return {**{name: _text(value) for name, value in theirs.items()}, **places.options}


def _data(record: RunRecord, places: Places) -> DataSource | None:
    theirs = record.config.data
    if theirs is None:
        if places.data is not None or places.tokenizer is not None:
            raise UsageError("--data, --tokenizer: the original's tokens are random, leave it out")
        return None
    if places.data is None:
        also = "" if theirs.tokenizer in (None, "bytes") else f" and --tokenizer {theirs.tokenizer}"
        raise UnavailableError(
            f"the original's tokens are of {theirs.kind} {theirs.path!r} (digest "
            f"{theirs.sha256[:12]}), which no bundle holds: say where it is with --data{also}"
        )
    ours = describe(places.data, places.tokenizer)
    if ours.sha256 != theirs.sha256:
        raise UsageError(
            f"--data {places.data}: its digest is {ours.sha256[:12]}, the original's "
            f"{theirs.sha256[:12]}: these are other tokens"
        )
    return ours


def _weights(record: RunRecord, places: Places) -> WeightsSource | None:
    theirs = record.config.weights
    if theirs is None:
        if places.weights is not None:
            raise UsageError("--weights: the original's weights are random, leave it out")
        return None
    if places.weights is None:
        raise UnavailableError(
            f"the original's weights are of the checkpoint {theirs.path!r} (digest "
            f"{theirs.sha256[:12]}), which no bundle holds: say where it is with --weights"
        )
    folder = places.weights.resolve()
    digest = open_checkpoint(folder, workloads.of(record.config).shape).digest
    if digest != theirs.sha256:
        raise UsageError(
            f"--weights {places.weights}: its digest is {digest[:12]}, the original's "
            f"{theirs.sha256[:12]}: these are other weights"
        )
    return WeightsSource(path=str(folder), sha256=digest)


def _text(value: OptionValue) -> str:
    """Return an option's value in the form of ``-O``. Example: ``true`` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)

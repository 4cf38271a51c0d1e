"""The limits of the rules, of what a stranger's files may be, and of waiting.

Each is written down once more, so that none is weakened in passing: a limit of a rule is part of
the rules (docs/rules.md), a limit of a file is what keeps a verifier's machine from harm.
"""

from __future__ import annotations

import importlib

import pytest

LIMITS: dict[str, dict[str, float]] = {
    "audit.bench": {
        "_DEVICE_BITS": 12.0,
    },
    "audit.distance": {
        "_MOST_BITS": 40.0,
    },
    "audit.equivalence": {
        "_LEAST_NARROW": 2.0**-9,
        "_NOTHING": 0.95,
        "_OF_ROUGH": 1.6,
        "_OF_WHOLE": 2.5,
        "_MOST_OF_WHOLE": 1.25,
        "_LEAST_OF_WHOLE": 0.7,
        "_LOSS_ULPS": 3,
        "_HONEST_LOSSES": 1.5,
        "_HONEST_LOSS": 0.05,
        "_LOSS_RELATIVE": 1e-05,
        "_ROUGHER": (2.0, 4.0, 2.0),
        "_ROUGHER_ON_HOST": (1.2, 1.75, 1.5),
        "FEW": 16,
        "ENOUGH": 0.5,
    },
    "audit.dropped_step": {
        "_LEAST_OF_MASKS": 0.5,
    },
    "audit.judged_steps": {
        "_ROUGHER": 2.0,
        "_PART_ROUGHER": 4.0,
    },
    "audit.loss": {
        "_ROUNDING": 0.25,
        "_SIGMAS": 5.0,
        "_GENTLE": 0.0001,
        "_RISE": 3.0,
        "_RISE_WITH_DROPOUT": 6.0,
    },
    "families.bert": {
        "_MASKED": 0.15,
    },
    "audit.namespace": {
        "_MOST_PAIRS": 250_000,
    },
    "audit.optimizer": {
        "_MOST_SKIPPED": 8,
    },
    "audit.outputs": {
        "_ROUGHER": 0.75,
    },
    "audit.pace": {
        "_SLOPE": 0.25,
        "_PARITY": 0.1,
        "_LEAST_BLOCKS": 4,
        "_LEAST_PER_KIND": 2,
        "_READING_NS": 100_000_000,
        "_BYTES_OF_A_PARAMETER": 16,
        "_BYTES_PER_NS": 10,
    },
    "audit.physics": {
        "_CERTAIN": 1.05,
        "_STEADY": 0.1,
    },
    "audit.precision": {
        "_LEEWAY": 2.0,
        "_OF_EFFECTIVE": 2,
        "_LEAST_ELEMENTS": 28,
        "_ROUGHER": 0.75,
        "_UNRELATED": 1.5,
    },
    "audit.quiet": {
        "_BUSY_BEFORE": 0.5,
        "_BUSY_AFTER": 1.25,
        "_STEAL": 0.02,
        "_ALL_CORES": 0.97,
        "_LAUNCHING": 1.5,
    },
    "audit.replay": {
        "_CLOSE_SHARE": 0.02,
        "_TINY": 2.0**-120,
    },
    "audit.time": {
        "_RELATIVE": 0.001,
        "_ABSOLUTE_NS": 5_000_000,
        "_DISTURBED_NS": 50_000_000,
        "_DOUBTFUL_NS": 200_000_000,
        "_OLD_RELATIVE": 0.005,
        "_OLD_ABSOLUTE_NS": 50_000_000,
        "LEAST_WINDOW_S": 5.0,
    },
    "audit.weights": {
        "_LARGEST_WEIGHT": 1.0,
    },
    "records.arrays": {
        "MAX_ELEMENTS": 2**22,
        "MAX_ARRAYS": 50_000,
        "MAX_HEADER_BYTES": 2**23,
    },
    "records.member_names": {
        "MAX_CHARACTERS": 240,
        "_MOST_MARKS": 3,
    },
    "records.members": {
        "MAX_FILES": 2000,
        "MAX_FILE_BYTES": 2**26,
        "MAX_TOTAL_BYTES": 2**28,
        "MAX_FOLDER_DEPTH": 16,
        "_MAX_ENTRIES": 20_000,
    },
    "records.repository": {
        "_TIMEOUT_S": 120,
        "_HEAD_TIMEOUT_S": 10,
    },
    "records.seed_commitment": {
        "MAX_BYTES": 2**14,
    },
    "records.strict_json": {
        "MAX_BYTES": 2**23,
        "MAX_DEPTH": 32,
        "MAX_INTEGER_DIGITS": 20,
        "MAX_VALUES": 250_000,
    },
    "records.zip_members": {
        "MAX_RATIO": 200,
        "_MAX_DIRECTORY_BYTES": 2**21,
    },
    "submission.comparison": {
        "_RELATIVE": 1e-09,
    },
    "submission.package": {
        "MAX_BYTES_PER_REPEAT": 2**24,
    },
    "submission.recompute_time": {
        "_RESAMPLES": 5_000,
        "_MOST_BLOCKS": 10_000,
        "_MOST_SEQUENCES": 2_000_000,
    },
    "submission.signatures": {
        "_MAX_SIGNERS_BYTES": 2**20,
        "_MAX_PRINCIPALS": 16,
        "_TIMEOUT_S": 60,
    },
    "submission.verified": {
        "MAX_CACHE_BYTES": 2**27,
        "MAX_RESULT_BYTES": 2**16,
    },
    "submission.verify": {
        "_MOST_LINES": 3_000,
    },
    "comparison.figures": {
        "MOST_BLOCKS": 10_000,
    },
    "comparison.compare": {
        "SIGNIFICANT": 0.05,
    },
    "reproduction.agreement": {
        "LIMIT_PERCENT": 5.0,
    },
    "supervision.negotiation": {
        "PROBE_LIMIT_S": 60.0,
    },
    "supervision.run_phases": {
        "_CALIBRATION_LIMIT_S": 600.0,
        "_TRIAL_STEPS": 3,
    },
    "supervision.doctor": {
        "_TORCH_LIMIT_S": 300.0,
    },
    "supervision.sizing": {
        "_RATES_LIMIT_S": 120.0,
        "USUAL_WITHIN_S": 600.0,
    },
    "supervision.silence": {
        "LONG_S": 60.0,
    },
    "supervision.batch_search": {
        "_LEVEL_GAIN": 0.02,
        "_MOST_REFINEMENTS": 3,
    },
    "wire.channel": {"_MAX_LINE": 2**24, "_MOST_CHARACTERS": 2000},
    "wire.child": {"_CONNECT_S": 300.0, "_EXIT_S": 20.0},
    "wire.forking": {"_ANSWER_S": 300.0},
    "history.file": {
        "MAX_LINE_BYTES": 2**14,
        "MAX_LINES": 100_000,
        "_TRIES": 500,
        "_PAUSE_S": 0.02,
    },
    "history.changes": {
        "MIN_RUNS": 4,
        "_PENALTY": 2.0,
        "_FALSE_ALARMS": 0.02,
    },
    "history.baseline": {
        "FEWEST": 3,
        "_BETWEEN_MACHINES": 0.15,
        "_STEADIER": 0.8,
        "_CEILING_MOVED": 0.03,
    },
    "measure.statistics": {
        "_RESAMPLES": 5_000,
    },
    "measure.summary": {
        "_WIDE_INTERVAL": 0.05,
        "_WIDE_SPREAD_CV": 0.1,
        "_SHORT_WINDOW_S": 30.0,
        "_STEAL_SHARE": 0.02,
    },
    "measure.step_figures": {
        "TARGET_GLOBAL_BATCH": 2**12,
        "DEVICES_PER_NODE": 4,
    },
    "node.bus": {
        "RANK_TIMEOUT_S": 60.0,
    },
    "node.examination": {
        "_LEAST_S": 60.0,
        "_STILL_TO_COME": 3,
    },
    "projection.calibration": {
        "_LEAST": 0.05,
        "_MOST": 3.0,
        "_BEYOND": 2.0,
    },
    "workloads.memory_job": {
        "_FITS": 0.85,
        "_FITS_NOT": 1.1,
    },
    "workloads.definition": {
        "_MOST_BYTES": 2**16,
        "_MOST": 2**31 - 1,
        "_MOST_LAYERS": 10_000,
    },
}


@pytest.mark.parametrize("module", LIMITS)
def test_no_limit_is_another_than_the_one_written_down(module: str) -> None:
    found = importlib.import_module(f"llmb.{module}")
    assert {name: getattr(found, name) for name in LIMITS[module]} == LIMITS[module]

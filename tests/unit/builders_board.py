"""Submissions made from nothing: bundles of any speed, verdict, submitter and system."""

from __future__ import annotations

import json

from llmb.records.canonical import pretty_bytes
from llmb.records.run_record import RunRecord
from llmb.records.submission import Submission, slug_fault
from llmb.submission.bundles import gather
from llmb.submission.clashes import content_of
from llmb.submission.verified import Verified
from tests import builders

STATUS = {"CONSISTENT": "pass", "FLAGGED": "flag", "UNVERIFIED": "not_observed", "INVALID": "fail"}
HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>'


def timed(data, factor):
    """Make the run of record ``data`` faster by ``factor``, its figures with it."""
    timing, result = data["timing"], data["result"]
    for one in (timing, *timing["repeats"]):
        for key in ("fence_ns", "fence_worker_ns", "step_ns"):
            one[key] = [round(ns / factor) for ns in one[key]]
        one["start_ns"], one["stop_ns"] = one["fence_ns"][0], one["fence_ns"][-1]
    mesh = data["config"]["parallelism"]
    devices = mesh["dp_replicate"] * mesh["dp_shard"] * mesh["tp"] * mesh["pp"]
    tokens = data["workload"]["tokens_per_step"] * timing["timed_steps"]
    rate = tokens / ((timing["stop_ns"] - timing["start_ns"]) / 1e9)
    result["tokens_per_second"] = rate
    result["tokens_per_second_per_device"] = rate / devices
    result["ci95"] = [rate * 0.99, rate * 1.01]


def judged(data, verdict):
    """Give the run of record ``data`` a verdict and findings that add up to it."""
    findings = data["audit"]["findings"]
    for finding in findings:
        finding["status"] = "pass"
    blocking = next(finding for finding in findings if finding["level"] == "block")
    blocking["status"] = STATUS[verdict]
    data["audit"]["verdict"] = verdict


def record(
    run=1, faster=1.0, verdict="CONSISTENT", effective="BF16", devices=1, change=lambda data: None
):
    """Return a consistent record; ``change`` edits its JSON data last."""

    def edit(data):
        data["run_id"] = f"{run:032x}"
        data["precision"]["effective"] = effective
        data["precision"]["how"] = "measured" if effective else "not observed"
        data["config"]["parallelism"]["dp_shard"] = data["topology"]["world_size"] = devices
        timed(data, faster)
        judged(data, verdict)
        change(data)

    data = json.loads(pretty_bytes(_BASE))
    edit(data)
    return RunRecord.model_validate(data)


_BASE = builders.make_record(1)


def put(root, one, submitter="acme", system="box", **files):
    """Write the bundle of record ``one`` where submissions lie below ``root``; return it.

    A submitter whose name is no id hands in an older bundle: its folders alone say whose it is.
    """
    place = root / submitter / system / "work" / one.run_id[-8:]
    content = builders.run_files(one) | {name: text.encode() for name, text in files.items()}
    if slug_fault(submitter) or slug_fault(system):
        return builders.write(place, builders.older_manifest(content))
    whose = Submission(submitter=submitter, system=system)
    return builders.write(place, builders.with_manifest(content, whose))


def believed(bundle):
    """Return that ``bundle`` passes every check: made-up speeds and verdicts would not."""
    content = content_of(bundle, bundle.record())
    return Verified(fault=None, signers=frozenset(), content=content)


def believing(paths):
    """Return the bundles at ``paths``, for tests of what is shown of those that passed."""
    return gather(paths, believed)


def index(root, submitter="acme", system="box", **more):
    """Write the index of a system below ``root``."""
    data = {"schema": "llmb.system-index/2", "submitter": submitter, "system": system}
    data |= {"availability": None, "precisions": {}, **more}
    (root / submitter / system).mkdir(parents=True, exist_ok=True)
    (root / submitter / system / "system.json").write_text(json.dumps(data))

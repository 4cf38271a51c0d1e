"""Records under a sound manifest."""

from __future__ import annotations

from tests.attacks.kinds import (
    RECORD,
    edited,
    forged,
    recorded,
)

SCHEMA = b'"schema": "llmb.run/1"'
recorded("record of the future", "made by a newer llmb", SCHEMA, b'"schema": "llmb.run/2"')
recorded("record of a far future", "made by a newer", SCHEMA, b'"schema": "llmb.run/999999999"')
recorded("record of before all", "which nobody reads", SCHEMA, b'"schema": "llmb.run/0"')
recorded("schema with a zero in front", "not a run record", SCHEMA, b'"schema": "llmb.run/01"')
recorded("schema with a line break", "not a run record", SCHEMA, b'"schema": "llmb.run/1\\n"')
recorded(
    "schema in other digits", "not a run record", SCHEMA, '"schema": "llmb.run/\u0661"'.encode()
)
recorded("schema that is a list", "not a run record", SCHEMA, b'"schema": ["llmb.run/1"]')
recorded("field with an escape", "Extra inputs", b'"waivers"', b'"\\u001b[2J": 1,\n"waivers"')
recorded("half of a letter", "surrogate", b'"Fast [1]"', b'"\\ud800"')
recorded("number as text", "not in the form", b'"batch_size": 8', b'"batch_size": "8"')
recorded("number as truth", "not in the form", b'"repeats": 1,', b'"repeats": true,')
recorded("verdict nobody gives", "Input should be", b'"verdict": "', b'"verdict": "CERTIFIED ')
forged("record that is a list", "not a run record", lambda files: {RECORD: b"[]"})
forged("record of 250,001 values", "values", lambda files: {RECORD: b"[" + b"0," * 250_001 + b"0]"})
edited(
    "wrong text in 100,000 places",
    r"step_ns\.0",
    lambda data: data["timing"].update(step_ns=["x"] * 100_000),
)
edited("no repeats", "refused", lambda data: data["timing"].update(repeats=[]))
edited(
    "throughput of 1e308", "recomputed", lambda data: data["result"].update(tokens_per_second=1e308)
)
edited("window of 19 digits", "refused", lambda data: data["timing"].update(stop_ns=10**19 - 1))
edited("10^18 devices", "refused", lambda data: data["topology"].update(world_size=10**18))
edited(
    "10^19 layers",
    "refused",
    lambda data: data["config"]["shape_overrides"].update(num_hidden_layers=10**19),
)
edited(
    "product in no time",
    "refused",
    lambda data: data["ceilings"]["before"]["gemms"][0].update(best_s=5e-324),
)
edited("negative energy", "refused", lambda data: data["timing"].update(energy_start_j=-1e308))
edited(
    "plugin file that climbs out",
    "is not the one in the record",
    lambda data: data["plugin"]["files"][0].update(path="../../../etc/passwd"),
)
edited(
    "device that writes to the terminal",
    "README.md does not say",
    lambda data: data["system"]["devices"][0].update(
        description="\x1b]0;owned\x07<script>alert(1)</script>"
    ),
)

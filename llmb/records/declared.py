"""Fields of a bundle that nobody can check: pages mark such fields as declared.

A field is listed if ``llmb verify`` passes with another value of the field. A field of a training
run's record that is not listed cannot be changed alone. Committed bundles test both. Whoever can
write every file of a bundle can change several fields together (docs/rules.md).
"""

from __future__ import annotations

#: Path in the record, ``*`` for every entry of a list or table -> why another value passes.
DECLARED = {
    "created_utc": "by the clock of the host",
    "config.device": "a name that the plugin gives",
    "config.executor": "no rule needs to know which program executed the model's code",
    "config.compile_mode": "as the executor",
    "config.sac_freq": "recomputed blocks change no value of a step",
    "plugin.distribution": "the package whose files are shown may be called anything",
    "plugin.version": "the files count, each by its digest",
    "plugin.lacks.float64": "as the plugin's backend tells",
    "plugin.lacks.full_float32_products": "as the plugin's backend tells",
    "plugin.lacks.memory_figures": "as the plugin's backend tells",
    "plugin.lacks.minutes_per_program": "as the plugin's backend tells",
    "topology.ranks.*.alone_s": "a step without communication, by the clock of the rank",
    "topology.ranks.*.host": "a digest of a name that the host gives itself",
    "topology.ranks.*.device": "a name that the plugin gives",
    "system.cpu": "as the operating system tells",
    "system.memory": "as the operating system tells",
    "system.devices": "as the plugin's backend tells",
    "system.os": "as the operating system tells",
    "system.python": "as Python tells",
    "system.torch": "as torch tells",
    "system.drivers": "as the plugin's backend tells",
    "system.env": "read before the plugin, and repeated by no other file",
    "system.load_before": "as the operating system tells",
    "system.load_after": "as the operating system tells",
    "duration.*": "times outside the window, and the estimate made from them",
    "processes.*": "how the supervisor started its processes",
    "timing.clock": "stamps fit together whatever clock they are of",
    "ceilings.*.memory_bytes_per_second": "no other figure follows from it",
    "ceilings.*.gemms.*.name": "the shape of the product counts",
    "ceilings.*.squares.*.layout": "size and time of the product count",
    "interconnect.with_plugin": "which process measured, as the run's supervisor tells",
    "interconnect.seconds": "the time of the measurement; no other figure follows from it",
    "interconnect.rates.*.calls": "the number of calls in a round; no other figure follows from it",
    "interconnect.rates.*.rounds_s": "the median of the rounds counts",
    "interconnect.hosts.*.numa": "as the operating system tells",
    "interconnect.hosts.*.devices": "as the operating system tells",
    "interconnect.hosts.*.cards": "as the operating system tells",
    "interconnect.hosts.*.between_devices": "as a tool of the devices' vendor tells",
    "warnings": "sentences for a reader",
    "diff.sources": "which files of llmb were other than the release's, found on the host itself",
    "diff.sources_base": "the release that the host compared with",
}
#: The manifest's facts on the submitter; of an older bundle, the folders and the system's index.
DECLARED_BY_PLACE = {
    "submitter": "a signature tells a key; whose it is, allowed_signers says",
    "system": "the submitter's word",
    "organisation": "the submitter's word",
    "system_name": "the submitter's word",
    "availability": "the submitter's word",
    "contact": "the submitter's word",
}
#: Words of pages that show a declared field -> the field.
_SHOWN = {
    "availability": "availability",
    "contact": "contact",
    "date": "created_utc",
    "device": "system.devices",
    "environment": "system.env",
    "executor": "config.executor",
    "host": "system.load_before",
    "interconnect": "interconnect.hosts.*.devices",
    "plugin": "plugin.version",
    "software": "system.os",
    "submitter": "submitter",
    "system": "system",
    "warnings": "warnings",
}


def marked(title: str) -> str:
    """Return ``title`` of a figure or fact, marked if the field is declared.

    Example: "Device" becomes "Device (declared)", and "MFU" stays.
    """
    return f"{title} (declared)" if title.lower() in _SHOWN else title

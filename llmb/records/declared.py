"""Fields of a bundle that nobody can check: pages mark such fields as declared.

A field is listed if ``llmb verify`` passes with another value of the field. A field of a training
run's record that is not listed cannot be changed alone. Committed bundles test both. Whoever can
write every file of a bundle can change several fields together (docs/rules.md).
"""

from __future__ import annotations

#: Path in the record, ``*`` for every entry of a list or table -> why another value passes.
DECLARED = {
    "run_id": "random; that no other bundle of a tree has it is checked",
    "created_utc": "by the clock of the host",
    "config.device": "a name that the plugin gives",
    "plugin.distribution": "the package whose files are shown may be called anything",
    "plugin.version": "the files count, each by its digest",
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
    "timing.clock": "stamps fit together whatever clock they are of",
    "ceilings.*.memory_bytes_per_second": "no other figure follows from it",
    "ceilings.*.gemms.*.name": "the shape of the product counts",
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
    "host": "system.load_before",
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

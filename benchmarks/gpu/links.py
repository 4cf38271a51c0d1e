"""Print the links of this host as JSON: PCI Express, network cards, NUMA, and the vendor's tool.

    python links.py

Beside the description stands the raw output of the vendor's tools, without serial numbers: a parser
that gives no matrix can then be corrected from it.
"""

from __future__ import annotations

import json
import re

from llmb.measure import link_tools, link_words, links

SERIAL = re.compile(r"GPU-[0-9a-f-]{8,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def main() -> None:
    """Print the description, the same in words, and the outputs."""
    found = links.describe()
    vendors = {device.pci[:4] for device in found.devices or ()}
    commands = [
        command
        for vendor, known in link_tools.commands().items()
        if vendor in vendors
        for command in known.values()
    ]
    outputs = {" ".join(command): link_tools.output(command) for command in commands}
    print(
        json.dumps(
            {
                "words": dict(link_words.host_words(found)),
                "links": found.model_dump(),
                "outputs": {k: v and SERIAL.sub("(serial)", v) for k, v in outputs.items()},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

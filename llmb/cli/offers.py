"""Prints the offers of the installed plugins: whole lines, in a pipe as in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from llmb.cli.tables import print_row
from llmb.cli.text import printable
from llmb.config import is_cpu
from llmb.supervision.diagnosis import NO_DEVICE, READY, state_of
from llmb.supervision.selection import reason_of
from llmb.wire.messages import Offer

_STYLES = {READY: "green", NO_DEVICE: "yellow"}


def print_offers(offers: Sequence[Offer], *, wide: bool = False) -> None:
    """Print every offer to stdout, and a hint if no vendor's plugin drives a device."""
    console = Console(highlight=False)
    widest = max((len(offer.plugin) for offer in offers), default=0)
    for offer in offers:
        state = state_of(offer)
        line = Text(f"{printable(offer.plugin):<{widest}}  ", "bold")
        line.append(f"{state:<9}", _STYLES.get(state, "red"))
        line.append(f"  {printable(offer.distribution)} {printable(offer.version)}")
        console.print(line, soft_wrap=True)
        for name, text in _details(offer):
            print_row(Text(f"  {name:<9}", "dim"), printable(text), wide=wide, indent=11)
    for hint in _hints(offers):
        print_row(Text("hint: ", "yellow"), printable(hint), wide=wide, indent=6)


def _details(offer: Offer) -> Iterator[tuple[str, str]]:
    if not offer.available:
        yield "reason", reason_of(offer)
        return
    for device in offer.devices:
        size = device.memory_bytes
        memory = "" if size is None else f", {size / 1e9:.1f} GB"
        yield "device", f"{device.name}  {device.description or 'not described'}{memory}"
    formats = [f"{p.name} (slow)" if p.is_slow else p.described for p in offer.precisions]
    yield "formats", ", ".join(formats) or "none"
    for refused in offer.refused:
        yield "", f"no {refused.name}: {refused.reason}"
    if lacking := offer.lacks.named():
        yield "lacks", ", ".join(lacking)
    for name, default in offer.options.items():
        choices = offer.option_choices.get(name)
        among = f" (of {', '.join(map(str, choices))})" if choices else ""
        yield "option", f"-O {name}={default}{among}  {offer.option_help.get(name, '')}"


def _hints(offers: Sequence[Offer]) -> Iterator[str]:
    driven = [offer for offer in offers if offer.available and not is_cpu(offer.device)]
    torch = next((offer.torch_version for offer in offers if offer.torch_version), None)
    if not driven and torch is not None:
        yield (
            f"torch {torch} sees no accelerator; if there is one, install its vendor's build of "
            "torch and driver (llmb doctor says more)"
        )
    elif driven and all(offer.distribution == "llmb" for offer in driven):
        device = driven[0].device.partition(":")[0]
        yield (
            f"only plugin {driven[0].plugin} drives {device}; a vendor's plugin may do more "
            "(plugins/README.md in llmb's source tree, or the vendor's page)"
        )
    if not any(offer.available for offer in offers):
        yield "no plugin is ready: llmb doctor says what is missing"
    elif any(state_of(offer) not in (READY, NO_DEVICE) for offer in offers):
        yield "a broken plugin is in nobody's way: the others work, and llmb doctor says more"

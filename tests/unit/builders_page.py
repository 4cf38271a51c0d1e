"""Records for pages: of a cheat with telemetry and a recipe, and with every word hostile."""

from __future__ import annotations

from typing import Any

from llmb.records.interconnect import CollectiveRate, HostLinks
from llmb.records.node_report import (
    DeviceCeiling,
    Limits,
    NodeDevice,
    NodeReport,
    NodeStep,
    Outlier,
    Speed,
)
from llmb.records.run_record import RunRecord
from tests import builders

#: Markup, quotes, a formula of a template, hidden and bidirectional characters, terminal escapes.
HOSTILE = (
    "<script>window.hacked=1</script>",
    "\"' onmouseover=alert(1) x='",
    "</style></title></svg></pre><img src=x onerror=alert(1)>",
    "{{7*7}}{% raw %}${alert(1)}",
    "\u202egnp.exe\u2066\u2069\u200b\u2028\ufeff",
    "\x1b[2J\x1b]0;title\x07\b\r\n\x00 \x9b31m",
    "&lt;script&gt;&#60;b&#62;",
    "]]><!--<svg/onload=alert(1)>",
)


def cheating() -> RunRecord:
    """Return an official record of two repeats whose rule P1 failed, with all that a page shows."""

    def edit(data: dict[str, Any]) -> None:
        for finding in data["audit"]["findings"]:
            finding["status"] = "pass"
        failed = next(one for one in data["audit"]["findings"] if one["id"] == "P1")
        failed |= {
            "status": "fail",
            "message": "declared BF16, computes in FP8",
            "measured": "forward 4.271 bits, gradients 4.078",
            "honest": "forward 6.829 bits, gradients 6.883",
            "limit": "BF16: 6.08, 6.13; FP8: 2.75, 2.45",
        }
        data["audit"]["verdict"] = "INVALID"
        data["precision"] |= {"effective": "FP8", "how": "measured"}
        for one in (data["timing"], *data["timing"]["repeats"]):
            one["audited_steps"] = [9, 30]
            one["telemetry"] = [
                {"power_w": 300.0 + n % 3, "sm_clock_mhz": 1700.0}
                for n in range(len(one["fence_ns"]))
            ]
        rows = [
            {"product": name, "direction": way, "format": "FP8", "layers": 12, "flops_share": 0.1}
            for name in ("q", "k", "v")
            for way in ("forward", "input gradient", "weight gradient")
        ]
        rows.append(
            {
                "product": "head",
                "direction": "forward",
                "format": None,
                "layers": 1,
                "flops_share": 0.1,
                "why": "no probe isolates it",
            }
        )
        data["precision_recipe"] = {
            "rows": [{"significand_bits": 2.9, "why": None, **row} for row in rows],
            "shares": [
                {"format": "FP8", "flops_share": 0.9},
                {"format": None, "flops_share": 0.1},
            ],
            "lowest": "FP8",
            "largest": "FP8",
            "state": [{"name": "weights", "value": "bfloat16", "how": "torch's type"}],
        }

    return builders.edited(builders.make_record(repeats=2), edit)


def interconnect(library: str = "nccl", tool: str = "nvidia-smi topo -m") -> dict[str, Any]:
    """Return the links between four ranks on two hosts of two devices, as data of a record."""
    speeds = {"gigatransfers_per_second": 2.5, "most_gigatransfers_per_second": 32.0}
    link = {**speeds, "lanes": 16, "most_lanes": 16}
    device = {"pci": "10de:2330 class 0302", "link": link, "numa_node": 1}
    pairs = [{"symbol": "NV18", "name": tool, "links": 18, "pairs": 1}]
    between = {"tool": tool, "devices": 2, "pairs": pairs, "links": []}
    card = {"kind": "infiniband", "bits_per_second": 4e11, "is_up": True, "device": device}
    numa = [{"node": 0, "cores": 48, "distances": [10]}]
    host = {"numa": numa, "devices": [device] * 2, "cards": [card], "between_devices": between}
    rates = [
        {
            "kind": kind,
            "bytes": size,
            "seconds": size / 1e11,
            "bus_bytes_per_second": 1.5e11,
            "bytes_per_second": 1e11,
            "rounds_s": [size / 1e11, size / 5e10],
            "calls": 3,
        }
        for kind in ("all_reduce", "all_gather")
        for size in (2**20, 2**28)
    ]
    hosts = [{**host, "ranks": [0, 1]}, {**host, "ranks": [2, 3]}]
    return {
        "library": library,
        "with_plugin": True,
        "seconds": 2.5,
        "rates": rates,
        "hosts": hosts,
    }


def hostile(words: str) -> RunRecord:
    """Return a record in which every free text is ``words``."""

    def edit(data: dict[str, Any]) -> None:
        plugin, system = data["plugin"], data["system"]
        plugin |= {"name": words, "version": words, "distribution": words}
        data["config"]["plugin"] = data["config"]["device"] = words
        data["config"]["plugin_options"] = {words: words}
        data["workload"]["name"] = data["config"]["workload"] = words
        data["workload"]["tokens"] = data["created_utc"] = data["llmb_version"] = words
        system |= {"os": words, "python": words, "torch": words}
        system |= {"drivers": {words: words}, "env": {words: words}}
        system["cpu"] |= {"model": words, "architecture": words}
        system["devices"][0] |= {"name": words, "description": words}
        data["topology"]["ranks"][0] |= {"device": words, "host": words}
        data["warnings"] = data["waivers"] = data["audit"]["limits"] = [words] * 2
        data["precision"]["effective"] = words
        data["result"]["mfu"]["peak_source"] = words
        metric = {"name": words, "value": 1.0, "unit": words, "formula": words}
        data["result"]["metrics"] = [metric]
        for finding in data["audit"]["findings"]:
            finding |= dict.fromkeys(
                ("message", "measured", "honest", "limit", "observer", "basis"), words
            )
            finding["evidence"] = [words]
        data["audit"]["findings"][0]["id"] = words
        part = {"version": words, "sha256": words, "bytes": 1, "licence": words}
        plugin["closed_components"] = [{"name": words, "where_to_get": words, **part}]
        plugin["declared_patches"] = [{"target": words, "reason": words}]
        data["diff"]["model"]["modules_added"] = [words]
        data["diff"]["settings"] = [{"name": words, "before": words, "after": words}]
        data["diff"] |= {"sources": [words], "sources_base": words}
        for gemm in data["ceilings"]["before"]["gemms"] + data["ceilings"]["after"]["gemms"]:
            gemm["name"] = words
        data["interconnect"] = interconnect(words[:64], words[:80])
        readings = [{words: float(n)} for n in range(3)]
        for one in (data["timing"], *data["timing"]["repeats"]):
            one["telemetry"] = readings
        data["precision_recipe"] = {
            "rows": [
                {
                    "product": words[:100],
                    "direction": "forward",
                    "format": words,
                    "layers": 1,
                    "flops_share": 1.0,
                    "significand_bits": None,
                    "why": words,
                }
            ],
            "shares": [{"format": words, "flops_share": 1.0}],
            "lowest": words,
            "largest": words,
            "state": [{"name": words, "value": words, "how": words}],
        }

    return builders.edited(builders.make_record(repeats=1), edit)


def node_report(words: str = "H100", slow: float = 0.7) -> NodeReport:
    """Return the report of four devices, the last of which is ``slow``; ``words`` are its texts."""
    devices = [
        NodeDevice(
            index=n,
            name=f"fast:{n}",
            description=words,
            ceiling=DeviceCeiling(
                product_flops_per_second=6e14 * speed,
                of_datasheet=0.6 * speed,
                memory_bytes_per_second=2.5e12,
            ),
            alone=Speed(
                run=f"alone/fast-{n}/run" if n else words,
                tokens_per_second=20_000 * speed,
                ci95=(19_900 * speed, 20_100 * speed),
                of_datasheet=0.4,
                of_ceiling=0.7,
            ),
        )
        for n, speed in enumerate((1.0, 0.99, 1.0, slow))
    ]
    steps = [
        NodeStep(name="doctor", status="done", seconds=2.0),
        NodeStep(name="alone", status="done", seconds=50.0, messages=(words,)),
        NodeStep(name="ddp", status="failed", seconds=20.0, messages=(words,)),
    ]
    return NodeReport(
        created_utc=words,
        llmb_version="0.2.0",
        plugin=words,
        precision="BF16",
        workload=words,
        size="full",
        batch_size=8,
        limits=Limits(device=0.9, together=0.9, efficiency=0.8),
        steps=tuple(steps),
        devices=tuple(devices),
        collectives=tuple(
            CollectiveRate(kind=kind, bytes=2**28, seconds=0.004, bus_bytes_per_second=rate)
            for kind, rate in (("all_reduce", 2e11), ("broadcast", 1e11))
        ),
        ddp=None,
        ddp_efficiency=None,
        outliers=(Outlier(device="fast:3", figure=words, value=14_000.0, others=20_000.0),),
        nearest=None,
        links=HostLinks.model_validate(interconnect(tool=words[:80])["hosts"][0]),
        verdict="no",
        reasons=(words,),
    )

"""What a probe answers for plugins that offer, refuse, lack a device, or are broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from llmb.config import RunRequest
from llmb.errors import UsageError
from llmb.plugin.faults import PluginFaultError
from llmb.processes import offer
from llmb.records.lacks import Lacks
from llmb.wire.channel import ChannelClosedError
from llmb.wire.messages import Message, Offer, OfferOrder, Resolved, Terms
from tests.unit.builders_runtime import install, run_config

SOURCE = """
from llmb.config import BF16, FP16, FP32, Precision, Refused
from llmb.errors import UnavailableError
from llmb.plugin import Lacks, Peak, PluginOption, hookimpl
from llmb.plugin.builtin.cpu import CpuBackend

class Acme(CpuBackend):
    {members}

@hookimpl
def llmb_backend(config):
    return Acme()
"""


class Channel:
    """The supervisor's end of the wire, in this process."""

    def __init__(self, request: RunRequest) -> None:
        self.orders: list[Message] = [
            OfferOrder(plugin="acme", request=request),
            Resolved(config=run_config(plugin="acme")),
            Resolved(config=run_config(plugin="acme", workload="llama-45m")),
        ]
        self.said: list[Message] = []

    def expect(self, kind: type) -> Message:
        if not self.orders:
            raise ChannelClosedError  # the supervisor has what it asked for
        message = self.orders.pop(0)
        assert isinstance(message, kind)
        return message

    def send(self, message: Message) -> None:
        self.said.append(message)


Probe = Callable[..., list[Message]]


@pytest.fixture
def probed(site: Path) -> Probe:
    """Install a plugin with the given members of its backend and hooks, and probe it."""

    def ask(hooks: str = "", members: str = "pass", **request: Any) -> list[Message]:
        text = SOURCE.format(members=members) + hooks
        install(site, "llmb-acme", {"acme": "acme_llmb"}, {"acme_llmb.py": text})
        channel = Channel(RunRequest(**request))
        with suppress(ChannelClosedError):
            offer.answer(channel)
        return channel.said

    return ask


FORMATS = """
@hookimpl
def llmb_precisions(config):
    slow = FP16.model_copy(update={"native": False})
    return [Refused(name="FP8", reason="too old"), BF16, slow, Refused(name="FP4", reason="no")]
"""


def test_what_is_offered_and_what_is_refused_are_told_apart_in_their_order(probed: Probe) -> None:
    offer, *_ = probed(FORMATS)
    assert isinstance(offer, Offer)
    assert [precision.name for precision in offer.precisions] == ["BF16", "FP16"]
    assert [refused.name for refused in offer.refused] == ["FP8", "FP4"]
    assert offer.refused[0].reason == "too old"
    assert (offer.available, offer.broken, offer.device) == (True, False, "cpu")


OPTIONS = """
@hookimpl
def llmb_options():
    return [
        PluginOption(name="fuse", default="mlp", choices=("mlp", "none"), help="what to fuse"),
        PluginOption(name="streams", type="int", default=2, help="how many"),
    ]
"""


def test_options_come_with_their_value_help_and_choices(probed: Probe) -> None:
    offer, *_ = probed(OPTIONS, plugin_options={"streams": "4"})
    assert isinstance(offer, Offer)
    assert offer.options == {"fuse": "mlp", "streams": 4}
    assert offer.option_help == {"fuse": "what to fuse", "streams": "how many"}
    assert offer.option_choices == {"fuse": ("mlp", "none")}


def test_the_terms_hold_versions_and_facts_as_text_and_the_peak(probed: Probe) -> None:
    facts = "@hookimpl\ndef llmb_describe_system(config): return {'firmware': 7}\n"
    members = (
        "def versions(self): return {'driver': 5.5}\n"
        "    def peak_flops(self, name): return Peak(flops_per_second=2.0, source=name)"
    )
    _, terms, again = probed(facts, members)
    assert again == terms, "for another size it is asked again"
    assert isinstance(terms, Terms)
    assert (terms.facts["driver"], terms.facts["firmware"]) == ("5.5", "7")
    assert terms.peak is not None
    assert terms.peak.source == run_config().precision.name


@pytest.mark.parametrize(
    ("members", "request_", "words"),
    [
        ("def is_available(self): return False", {}, "no cpu device was found"),
        ("pass", {"device": "warp"}, "it drives 'cpu', not 'warp'"),
        ("pass", {"device": "cpu:9"}, "device 'cpu:9': there are 1 cpu devices"),
        ("def is_available(self): raise UnavailableError('asleep')", {}, "^asleep$"),
    ],
)
def test_a_plugin_that_finds_no_device_offers_nothing_and_is_not_broken(
    probed: Probe, members: str, request_: dict[str, Any], words: str
) -> None:
    (offer,) = probed("", members, **request_)
    assert isinstance(offer, Offer)
    assert (offer.available, offer.broken, offer.precisions) == (False, False, ())
    assert re.search(words, offer.reason or "")


@pytest.mark.parametrize(
    ("hooks", "members", "words"),
    [
        ("", "def is_available(self): raise KeyError('lib')", "Acme.is_available raised KeyErr"),
        ("", "def devices(self): return ['cpu']", "Acme.devices returned a str"),
        ("", "def memory(self): return 5", "Acme.memory returned a int"),
        ("", "def energy(self): return 5.0", "Acme.energy returned a float"),
        ("", "def versions(self): return 'x'", "Acme.versions returned a str"),
        ("", "def peak_flops(self, name): return 5.0", "Acme.peak_flops returned a float"),
        ("", "step_clock = 'sundial'", "Acme.step_clock is 'sundial'"),
        ("@hookimpl\ndef llmb_options(): return 'x'\n", "pass", "llmb_options returned a str"),
        (
            "@hookimpl\ndef llmb_precisions():\n"
            "    return [Precision(name='MX5', bits=5, dtype='mxfloat5')]\n",
            "pass",
            "'mxfloat5', which this torch does not have",
        ),
    ],
    ids=lambda value: value[-30:],
)
def test_a_plugin_that_does_not_do_what_it_must_is_broken(
    probed: Probe, hooks: str, members: str, words: str
) -> None:
    with pytest.raises(PluginFaultError, match=f"plugin 'acme': .*{words}"):
        probed(hooks, members)


def test_an_option_that_the_plugin_does_not_have_is_the_users_mistake(probed: Probe) -> None:
    with pytest.raises(UsageError, match="fuse"):
        probed(OPTIONS, plugin_options={"fusion": "mlp"})


def test_a_backend_that_refuses_by_itself_is_quoted(probed: Probe) -> None:
    hooks = """
@hookimpl(tryfirst=True)
def llmb_backend(config):
    raise UnavailableError("driver 4 is too old: install 5")
"""
    (offer,) = probed(hooks)
    assert isinstance(offer, Offer)
    assert offer.reason == "driver 4 is too old: install 5"


WIDE = """
@hookimpl
def llmb_precisions(config):
    return [BF16, FP32]
"""


def test_what_the_device_lacks_is_part_of_the_offer(probed: Probe) -> None:
    offer, *_ = probed(WIDE, "lacks = Lacks(float64=True, minutes_per_program=3)")
    assert isinstance(offer, Offer)
    assert offer.lacks == Lacks(float64=True, minutes_per_program=3)
    assert [precision.name for precision in offer.precisions] == ["BF16", "FP32"]


def test_where_full_products_cannot_be_had_fp32_is_refused_and_not_found_out_later(
    probed: Probe,
) -> None:
    offer, *_ = probed(WIDE, "lacks = Lacks(full_float32_products=True)")
    assert isinstance(offer, Offer)
    assert [precision.name for precision in offer.precisions] == ["BF16"]
    (refused,) = offer.refused
    assert refused.name == "FP32"
    assert "multiplies float32 matrices in a narrower format" in refused.reason


@pytest.mark.parametrize(
    ("members", "steps"),
    [("pass", 1), ("lazy = True", 2), ("lacks = Lacks(eager_kernels=True)", 2)],
)
def test_a_device_without_eager_kernels_has_one_untimed_step_more(
    probed: Probe, members: str, steps: int
) -> None:
    _, terms, *_ = probed(WIDE, members)
    assert isinstance(terms, Terms)
    assert terms.warmup_steps == steps

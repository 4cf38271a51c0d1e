"""What children are told of a run, and how probes' answers and failures become a settled run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmb import workloads
from llmb.config import BF16, Precision, RunConfig, RunRequest
from llmb.errors import LlmbError, RunFailedError, UnavailableError, UsageError
from llmb.plugin import discovery
from llmb.plugin.discovery import InstalledPlugin
from llmb.records.seeds import derive
from llmb.supervision import negotiation
from llmb.supervision.negotiation import for_children, negotiate, survey
from llmb.wire.messages import Message, Offer, OfferOrder, Resolved, Terms
from tests.unit.builders_runtime import TINY, offer, run_config

DEBUG = workloads.find("llama-1.4b", TINY)
WARP = offer(plugin="warp", distribution="llmb-warp", device="warp:0")


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63 - 1])
def test_children_see_the_models_seed_and_cannot_get_the_steps_from_it(seed: int) -> None:
    config = run_config(seed=seed)
    shown = for_children(config)
    assert shown.seed != seed
    assert str(seed) not in shown.model_dump_json() or len(str(seed)) < 5
    steps = {derive(seed, "step", 0, index) for index in range(100)}
    guessed = {derive(shown.seed, "step", 0, index) for index in range(100)}
    assert not steps & guessed
    assert shown.seed not in steps


def test_children_see_everything_else_as_it_is() -> None:
    config = run_config(batch_size=3)
    assert for_children(config).model_copy(update={"seed": config.seed}) == config


def test_children_of_one_run_see_the_same_seed_and_of_another_run_another() -> None:
    seeds = [for_children(run_config(seed=seed)).seed for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


class FakeChild:
    """A probe that answers, or fails, as its plugin's entry in ``answers`` says."""

    answers: dict[str, Offer | LlmbError]
    seen: list[RunConfig]
    ordered: list[OfferOrder]
    ended: int

    def __init__(self, module: str, environment: dict[str, str], log: object) -> None:
        assert module == "llmb.processes.offer"
        log.write(b"a probe was here\n")

    def begin(self) -> None:
        self.answer: Offer | LlmbError = UsageError("nothing was ordered")

    def send(self, message: Message) -> None:
        if isinstance(message, OfferOrder):
            self.answer = self.answers[message.plugin]
            self.ordered.append(message)
        else:
            assert isinstance(message, Resolved)
            self.seen.append(message.config)

    def expect(self, kind: type, timeout_s: float) -> Message:
        if isinstance(self.answer, LlmbError):
            raise self.answer
        if kind is Offer:
            return self.answer
        return Terms(environment={"A": "1"}, warmup_steps=3, facts={}, peak=None)

    def end(self) -> None:
        type(self).ended += 1


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> type[FakeChild]:
    class Fresh(FakeChild):
        ended = 0

    Fresh.answers, Fresh.seen, Fresh.ordered = {}, [], []
    monkeypatch.setattr(negotiation, "Child", Fresh)
    monkeypatch.setattr(discovery, "installed", lambda: PLUGINS)
    return Fresh


PLUGINS = (
    InstalledPlugin("warp", "warp_llmb", "llmb-warp", "2.0"),
    InstalledPlugin("cpu", "llmb.plugin.builtin.cpu", "llmb", "0.1.0"),
)


def test_the_best_offer_is_settled_with_its_plugin_and_every_probe_is_ended(
    probes: type[FakeChild],
) -> None:
    probes.answers = {"warp": WARP, "cpu": offer()}
    settled = negotiate(RunRequest(), DEBUG)
    assert settled.offer == WARP
    assert settled.config.plugin == "warp"
    assert settled.terms.environment == {"A": "1"}
    assert "a probe was here" in settled.log
    assert probes.ended == 2


def test_warm_up_is_the_larger_of_what_user_and_plugin_want(probes: type[FakeChild]) -> None:
    probes.answers = {"warp": WARP, "cpu": offer()}
    for wanted, steps in ((None, 3), (2, 3), (9, 9)):
        assert negotiate(RunRequest(warmup_steps=wanted), DEBUG).config.warmup_steps == steps


def test_the_plugin_is_not_told_the_seed(probes: type[FakeChild]) -> None:
    probes.answers = {"warp": WARP, "cpu": offer()}
    config = negotiate(RunRequest(seed=77), DEBUG).config
    assert config.seed == 77
    assert [shown.seed for shown in probes.seen] == [derive(77, "model")]


def test_no_probe_is_ordered_with_the_seed_that_was_asked_for(probes: type[FakeChild]) -> None:
    probes.answers = {"warp": WARP, "cpu": offer()}
    asked = RunRequest(seed=7654321, batch_size=3)
    negotiate(asked, DEBUG)
    assert len(probes.ordered) == 2
    for order in probes.ordered:
        assert order.request == asked.model_copy(update={"seed": None})


def test_a_plugin_that_breaks_does_not_keep_another_from_running(
    probes: type[FakeChild],
) -> None:
    probes.answers = {"warp": RunFailedError("exit status 3"), "cpu": offer()}
    assert negotiate(RunRequest(), DEBUG).config.plugin == "cpu"


def test_a_survey_lists_a_broken_plugin_with_its_reason(probes: type[FakeChild]) -> None:
    probes.answers = {"warp": RunFailedError("exit status 3"), "cpu": offer()}
    broken, good = survey(PLUGINS, RunRequest())
    assert (broken.plugin, broken.version, broken.available) == ("warp", "2.0", False)
    assert broken.reason == "plugin 'warp' cannot be probed: exit status 3 (a probe was here)"
    assert good.available
    assert probes.ended == 2


def test_the_plugin_asked_for_that_dies_in_its_probe_is_unavailable_by_name(
    probes: type[FakeChild],
) -> None:
    probes.answers = {"warp": RunFailedError("exit status 3")}
    with pytest.raises(UnavailableError, match="'warp' cannot be probed: exit status 3"):
        negotiate(RunRequest(plugin="warp"), DEBUG)
    assert probes.ended == 1


@pytest.mark.parametrize(
    ("offered", "fault"),
    [
        (BF16.model_copy(update={"bits": 8}), "BF16 with 8 bits, BF16 has 16"),
        (BF16.model_copy(update={"dtype": "float16"}), "BF16 with dtype 'float16', that name"),
        (Precision(name="FP8", bits=8, dtype="float16"), "FP8 with dtype 'float16', in which"),
    ],
    ids=["bits", "dtype", "dtype without replay"],
)
def test_a_format_that_is_not_what_its_name_says_is_refused_whatever_the_plugins_process_checked(
    probes: type[FakeChild], offered: Precision, fault: str
) -> None:
    probes.answers = {"warp": WARP.model_copy(update={"precisions": (BF16, offered)})}
    with pytest.raises(UnavailableError, match=f"plugin 'warp' offered {fault}"):
        negotiate(RunRequest(plugin="warp"), DEBUG)


def test_a_bad_option_of_the_plugin_asked_for_stays_a_usage_error(
    probes: type[FakeChild],
) -> None:
    probes.answers = {"warp": UsageError("-O x: no such option")}
    with pytest.raises(UsageError, match=r"^-O x: no such option$"):
        negotiate(RunRequest(plugin="warp"), DEBUG)


def test_a_vendors_plugin_that_is_passed_over_is_noted_with_its_reason(
    probes: type[FakeChild],
) -> None:
    gone = WARP.model_copy(update={"available": False, "reason": "no device"})
    probes.answers = {"warp": gone, "cpu": offer()}
    settled = negotiate(RunRequest(), DEBUG)
    assert settled.config.plugin == "cpu"
    assert settled.notes == ("plugin 'warp' is not used: no device",)


def test_what_can_be_used_and_what_is_built_in_need_no_note(probes: type[FakeChild]) -> None:
    gone = offer().model_copy(update={"available": False, "reason": "no device"})
    probes.answers = {"warp": WARP, "cpu": gone}
    assert negotiate(RunRequest(), DEBUG).notes == ()


def test_a_plugin_whose_name_is_claimed_twice_is_noted_and_no_probe_is_started_for_it(
    probes: type[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = replace(PLUGINS[0], fault="claimed by two")
    monkeypatch.setattr(discovery, "installed", lambda: (twice, PLUGINS[1]))
    probes.answers = {"cpu": offer()}
    settled = negotiate(RunRequest(), DEBUG)
    assert settled.config.plugin == "cpu"
    assert settled.notes == ("plugin 'warp' is not used: claimed by two",)
    assert probes.ended == 1


def test_a_plugin_that_dies_is_not_quoted_with_the_words_of_another(
    probes: type[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Talking(probes):
        def __init__(self, module: str, environment: dict[str, str], log: object) -> None:
            self.log = log

        def send(self, message: Message) -> None:
            super().send(message)
            if message.plugin == "cpu":
                self.log.write(b"words of the cpu\n")

    monkeypatch.setattr(negotiation, "Child", Talking)
    probes.answers = {"warp": RunFailedError("exit status 3"), "cpu": offer()}
    _, broken = survey(PLUGINS[::-1], RunRequest())
    assert "words of the cpu" not in broken.reason


def test_a_note_names_a_broken_plugin_once(probes: type[FakeChild]) -> None:
    probes.answers = {"warp": RunFailedError("exit status 3"), "cpu": offer()}
    (note,) = negotiate(RunRequest(), DEBUG).notes
    assert note.count("plugin 'warp'") == 1


def test_only_the_plugin_asked_for_is_probed(probes: type[FakeChild]) -> None:
    probes.answers = {"cpu": offer()}
    assert negotiate(RunRequest(plugin="cpu"), DEBUG).config.plugin == "cpu"
    assert probes.ended == 1


def test_a_plugin_that_is_not_installed_is_refused_before_anything_is_started(
    probes: type[FakeChild],
) -> None:
    with pytest.raises(UnavailableError, match="no plugin 'gone'"):
        negotiate(RunRequest(plugin="gone"), DEBUG)
    assert probes.ended == 0


def test_every_probe_has_its_order_before_the_first_answer_is_waited_for(
    probes: type[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Noted(probes):
        def send(self, message: Message) -> None:
            super().send(message)
            happened.append("order")

        def expect(self, kind: type, timeout_s: float) -> Message:
            happened.append("answer")
            return super().expect(kind, timeout_s)

    monkeypatch.setattr(negotiation, "Child", Noted)
    probes.answers = {"warp": WARP, "cpu": offer()}
    survey(PLUGINS, RunRequest())
    assert happened == ["order", "order", "answer", "answer"]


def test_last_words_that_only_repeat_the_error_are_not_quoted(
    probes: type[FakeChild],
) -> None:
    probes.answers = {"warp": RunFailedError("it said: a probe was here"), "cpu": offer()}
    broken, _ = survey(PLUGINS, RunRequest())
    assert broken.reason == "plugin 'warp' cannot be probed: it said: a probe was here"
    assert (broken.broken, broken.available) == (True, False)


def test_terms_of_several_plugins_are_settled_together_and_a_failure_is_an_answer(
    probes: type[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Second(probes):
        def expect(self, kind: type, timeout_s: float) -> Message:
            if kind is Terms and self.answer.plugin == "warp":
                raise RunFailedError("llmb.processes.offer was killed by SIGSEGV")
            return super().expect(kind, timeout_s)

    probes.answers = {"warp": WARP, "cpu": offer()}
    monkeypatch.setattr(negotiation, "Child", Second)
    with negotiation.Offers(PLUGINS, RunRequest()) as asked:
        found = asked.settle_all({"warp": run_config(plugin="warp"), "cpu": run_config()})
    assert isinstance(found["warp"], UnavailableError)
    assert "'warp' cannot be probed: llmb.processes.offer was killed by SIGSEGV" in str(
        found["warp"]
    )
    assert found["cpu"].environment == {"A": "1"}
    assert [shown.plugin for shown in probes.seen] == ["warp", "cpu"]


@pytest.mark.parametrize(
    "reason", ["plugin 'warp': llmb_backend raised KeyError", "llmb_backend raised KeyError"]
)
def test_a_note_names_the_plugin_once_however_the_reason_begins(
    probes: type[FakeChild], reason: str
) -> None:
    gone = WARP.model_copy(update={"available": False, "reason": reason})
    probes.answers = {"warp": gone, "cpu": offer()}
    notes = negotiate(RunRequest(), DEBUG).notes
    assert notes == ("plugin 'warp' is not used: llmb_backend raised KeyError",)


def test_a_plugin_that_dies_when_the_run_is_settled_is_unavailable_by_name(
    probes: type[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(probes):
        def expect(self, kind: type, timeout_s: float) -> Message:
            if kind is Terms:
                raise RunFailedError("llmb.processes.offer ended early with exit status 7")
            return super().expect(kind, timeout_s)

    monkeypatch.setattr(negotiation, "Child", Dying)
    probes.answers = {"cpu": offer()}
    with pytest.raises(UnavailableError, match=r"'cpu' cannot be probed: .* exit status 7"):
        negotiate(RunRequest(plugin="cpu"), DEBUG)

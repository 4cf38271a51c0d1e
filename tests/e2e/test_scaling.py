"""``--scaling`` goes on where one of its runs is INVALID, and says so."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e import harness


def test_an_invalid_run_is_in_the_table_and_the_others_are_done(tmp_path: Path) -> None:
    source = """
    import torch.nn.functional as F
    def another(input, inplace=False):
        return input * torch.sigmoid(input)
    @hookimpl
    def llmb_post_process_model(model, config):
        if os.environ["WORLD_SIZE"] == "1":
            F.silu = another
        return model
    """
    folder = harness.plugin(tmp_path / "plugins", "odd", source)
    words = ("--scaling=1,2", *harness.with_plugin("odd"), "--json", "--output-dir", tmp_path / "o")
    ended = harness.call("run", *words, env=harness.environment(folder))
    assert ended.code == 5, ended.stderr
    points = json.loads(ended.stdout)["points"]
    assert [(p["ranks"], p["verdict"] == "INVALID") for p in points] == [(1, True), (2, False)]
    assert "with 1 rank the run is INVALID" in ended.said[-1]

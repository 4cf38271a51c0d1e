"""Nothing secret and no place of the machine leaves it."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pytest

from llmb.records.redact import redact_environment, redact_everything, redact_paths, redact_text


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "TORCH_LOGS", "PYTORCH_ALLOC_CONF", "LD_PRELOAD", "NCCL_DEBUG", "ZE_MASK"],
)
def test_variables_that_steer_torch_are_kept_as_they_are(name: str) -> None:
    assert redact_environment({name: "4"}) == {name: "4"}


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "XLA_FLAGS"])
def test_variables_that_choose_a_device_or_its_compiler_are_kept(name: str) -> None:
    assert redact_environment({name: "4"}) == {name: "4"}


@pytest.mark.parametrize("name", ["PATH", "USER", "MY_TORCH", "EDITOR", "AWS_REGION", "omp_x"])
def test_every_other_variable_is_left_out(name: str) -> None:
    assert redact_environment({name: "4"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "TORCH_HUB_TOKEN",
        "NVIDIA_API_KEY",
        "PYTORCH_secret_x",
        "LLMB_PASSWORD",
        "NCCL_AUTH",
        "UCX_CREDENTIALS",
        "TRITON_COOKIE_FILE",
    ],
)
def test_a_value_whose_name_sounds_secret_is_never_shown(name: str) -> None:
    assert redact_environment({name: "hunter2"}) == {name: "(redacted)"}


def test_variables_come_in_the_order_of_their_names() -> None:
    assert list(redact_environment({"OMP_B": "", "MKL_A": "", "OMP_A": ""})) == [
        "MKL_A",
        "OMP_A",
        "OMP_B",
    ]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an interpreter in /opt/py, a home in /home/me, and temporary files in /scratch/tmp."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", "/opt/py")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch/tmp")


@pytest.mark.usefixtures("places")
def test_paths_are_shortened_to_what_they_mean(tmp_path: Path) -> None:
    text = f"/opt/py/lib/x.so:{tmp_path}/a:/home/me/.cache:/scratch/tmp/t:/usr/lib/y.so"
    assert redact_paths(text) == "<python>/lib/x.so:<cwd>/a:~/.cache:<tmp>/t:/usr/lib/y.so"


@pytest.mark.usefixtures("places")
def test_paths_in_kept_variables_are_shortened() -> None:
    assert redact_environment({"LD_PRELOAD": "/home/me/lib.so"}) == {"LD_PRELOAD": "~/lib.so"}


def test_the_root_folder_is_not_a_place_to_hide(
    monkeypatch: pytest.MonkeyPatch, places: None
) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.chdir("/")
    assert redact_paths("/usr/lib/x") == "/usr/lib/x"


@pytest.mark.usefixtures("places")
def test_a_folder_that_only_begins_like_home_is_not_home() -> None:
    assert redact_paths("/home/meredith/x") == "/home/meredith/x"


@pytest.mark.usefixtures("places")
def test_a_folder_at_the_end_of_a_sentence_is_shortened() -> None:
    assert redact_paths("cannot write to /home/me.") == "cannot write to ~."


def test_a_password_within_a_value_is_not_shown() -> None:
    kept = redact_environment({"TORCH_INDEX": "https://me:hunter2@host/simple"})
    assert "hunter2" not in kept["TORCH_INDEX"]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, places: None) -> None:
    """Give a host box17.acme.example and a user gertrude whose home is /home/me."""
    monkeypatch.setattr("platform.node", lambda: "box17.acme.example")
    for name in ("LOGNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "gertrude")


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box17.acme.example: no device", "<host>: no device"),
        ("box17: no device", "<host>: no device"),
        ("user gertrude is not in group render", "user <user> is not in group render"),
        ("/data/gertrude/lib.so", "/data/<user>/lib.so"),
        ("gertrude@box17", "<user>@<host>"),
        ("box170 and gertrudes stay", "box170 and gertrudes stay"),
        ("/home/me/x and /scratch/tmp/y", "~/x and <tmp>/y"),
        ("HF_TOKEN=hf_12345 and api_key=abc;", "HF_TOKEN=(redacted) and api_key=(redacted);"),
        ("https://me:hunter2@index/simple", "https://(redacted)@index/simple"),
        ("https://me:p@ss@index/simple", "https://(redacted)@index/simple"),
        ('{"token": "hf_12345", "n": 5}', '{"token": "(redacted)", "n": 5}'),
        ("licence_key = 'ABCD-EFGH'", "licence_key = '(redacted)'"),
        (
            "GITHUB_PAT=ghp_1 DB_PASS=x MYSQL_PWD=y",
            "GITHUB_PAT=(redacted) DB_PASS=(redacted) MYSQL_PWD=(redacted)",
        ),
        ("Authorization: Bearer abc.def", "Authorization: Bearer (redacted)"),
        ("KeyError: 'warp'", "KeyError: 'warp'"),
        ("256 tokens and a key", "256 tokens and a key"),
    ],
)
def test_what_a_stranger_wrote_tells_neither_host_nor_user_nor_place_nor_secret(
    text: str, expected: str
) -> None:
    assert redact_text(text) == expected


@pytest.mark.usefixtures("names")
def test_the_value_of_a_secret_variable_is_hidden_wherever_it_is_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_LICENCE_KEY", "open-sesame-42")
    monkeypatch.setenv("SHORT_TOKEN", "5")
    assert redact_text("rejected 'open-sesame-42' 5 times") == "rejected '(redacted)' 5 times"


@pytest.mark.parametrize("word", ["KEY", "x", "//", "_PWD", "'token' "])
def test_a_long_text_takes_time_in_proportion_to_its_length(word: str) -> None:
    begin = time.process_time()
    redact_text(word * (300_000 // len(word)))
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("name", ["root", "vm", "localhost", ""])
def test_names_that_tell_nothing_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, places: None, name: str
) -> None:
    monkeypatch.setenv("USER", name)
    monkeypatch.setattr("platform.node", lambda: name)
    text = "root of the vm on localhost"
    assert redact_text(text) == text


@pytest.mark.usefixtures("names")
def test_every_text_within_data_is_redacted_and_the_rest_is_kept() -> None:
    data = {"box17": ["gertrude", 5, None, {"deep": "/home/me/x"}], "flag": True, "rate": 1.5}
    assert redact_everything(data) == {
        "box17": ["<user>", 5, None, {"deep": "~/x"}],
        "flag": True,
        "rate": 1.5,
    }


def test_a_working_folder_that_has_been_deleted_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert redact_paths("/usr/lib/x.so") == "/usr/lib/x.so"


def test_a_user_without_a_name_and_without_a_home_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    assert redact_paths("/somewhere/else") == "/somewhere/else"

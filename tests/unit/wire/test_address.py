"""What a process's environment says of its supervisor is there until the process has read it."""

from __future__ import annotations

import os

import pytest

from llmb.wire.address import (
    WorkerAddress,
    child_environment,
    descriptor_environment,
    give_descriptor,
    worker_address,
)

#: Variables that a plugin asks for.
FORGED = {"OMP_NUM_THREADS": "4", "LLMB_NONCE": "forged", "LLMB_DESCRIPTOR": "5"}


def test_a_child_gets_this_environment_plus_the_plugins_variables_plus_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEPT", "yes")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    address = WorkerAddress(socket_path="/tmp/s", nonce="n")
    child = child_environment(address, FORGED)
    assert "LLMB_DESCRIPTOR" not in child
    assert child["KEPT"] == "yes"
    assert child["OMP_NUM_THREADS"] == "4"
    assert (child["LLMB_SOCKET"], child["LLMB_NONCE"]) == ("/tmp/s", "n")
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_child_takes_its_address_out_of_the_environment_so_that_no_plugin_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLMB_SOCKET", "/tmp/s")
    monkeypatch.setenv("LLMB_NONCE", "n")
    assert worker_address() == WorkerAddress(socket_path="/tmp/s", nonce="n")
    assert not {"LLMB_SOCKET", "LLMB_NONCE"} & set(os.environ)


def test_a_forked_process_has_a_descriptor_for_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMB_DESCRIPTOR", "")
    monkeypatch.setenv("KEPT", "yes")
    given = descriptor_environment(7, {"ACME": "1"})
    assert (given["LLMB_DESCRIPTOR"], given["ACME"], given["KEPT"]) == ("7", "1", "yes")
    give_descriptor(3)
    assert worker_address() == WorkerAddress(socket_path="", nonce="", descriptor=3)
    assert "LLMB_DESCRIPTOR" not in os.environ

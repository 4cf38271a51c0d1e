"""Whose keys the list of owners has: fingerprints as ssh-keygen prints them, and organisations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmb.errors import BundleRefusedError
from llmb.submission.owners import Party, party, read
from tests import needs


@pytest.mark.parametrize(("kind", "bits"), [("ed25519", "256"), ("rsa", "3072"), ("ecdsa", "256")])
def test_the_fingerprint_of_a_line_is_the_one_of_ssh_keygen(
    tmp_path: Path, kind: str, bits: str
) -> None:
    ssh_keygen = needs.program("ssh-keygen")
    key = tmp_path / "key"
    subprocess.run(
        [ssh_keygen, "-q", "-t", kind, "-b", bits, "-N", "", "-f", key], check=True, timeout=120
    )
    public = key.with_suffix(".pub").read_text()
    shown = subprocess.run(
        [ssh_keygen, "-l", "-f", key], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    (line,) = read(f'acme namespaces="llmb-bundle" {public}'.encode())
    assert line.fingerprint == shown.split()[1]


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"


def test_a_party_has_all_its_keys_and_nobody_elses() -> None:
    names = (f"acme {KEY}A== Acme, Inc. @jane", f"acme,acme-labs {KEY}B== Acme, Inc.")
    lines = read("\n".join((*names, f"beta {KEY}C==")).encode())
    prints = [line.fingerprint for line in lines]
    assert party(lines, "acme") == Party(frozenset(prints[:2]), "Acme, Inc.")
    assert party(lines, "acme-labs") == Party(frozenset(prints[1:2]), "Acme, Inc.")
    assert party(lines, "beta") == Party(frozenset(prints[2:]), None)
    assert party(lines, None) == party(lines, "gamma") == Party()


def test_a_key_that_is_not_base64_is_refused_with_its_line() -> None:
    with pytest.raises(BundleRefusedError, match="line 2: the key is not base64"):
        read(f"# owners\nacme {KEY}".encode())

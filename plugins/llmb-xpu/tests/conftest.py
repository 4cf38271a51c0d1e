"""Shared parts of llmb-xpu's tests.

Tests of Intel's extension run in ``tox run -e xpu``, and are skipped beside every other torch.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from llmb_xpu import extension

# At the end, so that tox tests an installed llmb and not the sources beside the tests.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from llmb.config import Refused
from tests import needs
from tests.e2e.conftest import once, shared_folder  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def ipex() -> Any:
    """Import Intel's real extension; the import prints many warnings about foreign code."""
    needs.package("intel_extension_for_pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return extension.load()


@pytest.fixture(scope="session")
def bf16_refused(ipex: Any) -> str | None:
    """Return the reason why the extension does not train in BF16 here, None if BF16 works."""
    (bf16,) = (offer for offer in extension.precisions() if offer.name == "BF16")
    return bf16.reason if isinstance(bf16, Refused) else None

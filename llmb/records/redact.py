"""Redaction of text that leaves the machine: secrets, paths, host names and user names."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmb.config import environment

_WORDS = r"(?:KEY|TOKEN|SECRET|PASS(?:W|PHRASE|\b)|_PWD\b|_PAT\b|CREDENTIAL|AUTH|COOKIE)"
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_LOGIN = re.compile(r"//[^/\s]+@")  # user and password in an address
#: An assignment in a shell or in JSON (a colon alone is not enough: ``KeyError: 'x'``). Strangers
#: may write any text, so the pattern limits the length after a word.
_ASSIGNED = re.compile(
    rf"""({_WORDS}\w{{0,40}}(?:\ ?=\ ?|["']\ ?:\ ?)["']?|\bBearer\ )[^\s&;,"']+""", re.IGNORECASE
)
#: A shorter name occurs in too many words, and a shorter value is no secret.
_SHORTEST_NAME, _SHORTEST_SECRET = 3, 8
_NOBODY = {"root", "localhost", "llmb", "torch"}
#: Variables that steer torch, compilers, libraries or the allocator. Torchrun's variables about a
#: rank (TORCHELASTIC_...) are left out, because the values differ in every run.
_STEERING = re.compile(
    r"(?!TORCHELASTIC_)(OMP|KMP|GOMP|MKL|DNNL|ONEDNN|ATEN|TORCH|PYTORCH|TRITON|INDUCTOR|MALLOC|GLIBC|THP|LD_PRELOAD"
    r"|LLMB|NCCL|GLOO|UCX|PJRT|NUMBA|OPENBLAS|VECLIB|CUBLAS|CUDNN|CUDA|NVIDIA|HSA|HIP|ROCR|XLA|SYCL|ZE|NEURON)"
)


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that steer torch, paths shortened, secret-looking values hidden."""
    kept = {name: value for name, value in variables.items() if _STEERING.match(name)}
    return {
        name: "(redacted)" if _SECRET.search(name) else redact_paths(value)
        for name, value in sorted(kept.items())
    }


def homes() -> tuple[Path, ...]:
    """Return the user's home folder; nothing for a user without a name and ``HOME``."""
    try:
        return (Path.home(),)
    except RuntimeError:
        return ()


def redact_paths(text: str) -> str:
    """Return ``text`` with paths of this machine shortened: interpreter, cwd, home, tmp."""
    places = (
        (Path(sys.prefix), "<python>"),
        (_working_folder(), "<cwd>"),
        *((home, "~") for home in homes()),
        (Path(tempfile.gettempdir()), "<tmp>"),
    )
    for place, name in places:
        if len(place.parts) > 1:  # never the root
            text = re.sub(rf"{re.escape(str(place))}(?![\w-]|\.\w)", name, text)
    return _LOGIN.sub("//(redacted)@", text)


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the folder has been deleted
        return Path("/")


def redact_everything(value: Any) -> Any:
    """Return JSON data without this machine's paths, host names, user names and secrets.

    For text written by strangers, such as a vendor's error message. Keys of objects are kept.
    """
    if isinstance(value, dict):
        return {key: redact_everything(each) for key, each in value.items()}
    if isinstance(value, list):
        return [redact_everything(each) for each in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return ``text`` without this machine's paths, host names, user names and secrets."""
    variables = environment()
    for name, value in variables.items():
        if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "(redacted)")
    text = _ASSIGNED.sub(r"\1(redacted)", redact_paths(text))
    for place, names in (("<host>", _host_names()), ("<user>", _user_names(variables))):
        for name in names:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", place, text)
    return text


def _host_names() -> Iterator[str]:
    full = platform.node()
    yield from filter(_is_telling, dict.fromkeys((full, full.partition(".")[0])))


def _user_names(variables: Mapping[str, str]) -> Iterator[str]:
    given = (variables.get(name, "") for name in ("USER", "LOGNAME", "USERNAME"))
    yield from filter(_is_telling, dict.fromkeys((*(home.name for home in homes()), *given)))


def _is_telling(name: str) -> bool:
    return len(name) >= _SHORTEST_NAME and name.lower() not in _NOBODY

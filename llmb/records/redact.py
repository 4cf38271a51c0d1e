"""What must not leave the machine: secrets, and where things lie on it."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_LOGIN = re.compile(r"//[^/@\s]+@")  # user and password in an address
#: Variables that steer torch, its compilers, its libraries or the allocator.
_STEERING = re.compile(
    r"(OMP|KMP|GOMP|MKL|DNNL|ONEDNN|ATEN|TORCH|PYTORCH|TRITON|INDUCTOR|MALLOC|GLIBC|THP|LD_PRELOAD"
    r"|LLMB|NCCL|GLOO|UCX|PJRT|NUMBA|OPENBLAS|VECLIB|CUBLAS|CUDNN|CUDA|NVIDIA|HSA|HIP|ROCR|XLA|SYCL|ZE|NEURON)"
)


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that steer torch, paths shortened, secret-looking values hidden."""
    kept = {name: value for name, value in variables.items() if _STEERING.match(name)}
    return {
        name: "(redacted)" if _SECRET.search(name) else redact_paths(value)
        for name, value in sorted(kept.items())
    }


def redact_paths(text: str) -> str:
    """Return ``text`` with the places of this machine shortened: interpreter, cwd, home, tmp."""
    places = (
        (Path(sys.prefix), "<python>"),
        (Path.cwd(), "<cwd>"),
        (Path.home(), "~"),
        (Path(tempfile.gettempdir()), "<tmp>"),
    )
    for place, name in places:
        if len(place.parts) > 1:  # never the root
            text = re.sub(rf"{re.escape(str(place))}(?![\w-]|\.\w)", name, text)
    return _LOGIN.sub("//(redacted)@", text)

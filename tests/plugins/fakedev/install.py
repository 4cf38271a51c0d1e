"""Builds the fake device and installs it: ``python install.py FOLDER``, then FOLDER on PYTHONPATH.

The compiler is called directly: torch.utils.cpp_extension would want setuptools and ninja, for a
single file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def compiler() -> str | None:
    """Return the C++ compiler, None without one."""
    return shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")


def install(folder: Path) -> None:
    """Put device, module and metadata into ``folder``."""
    import torch

    found = compiler()
    assert found, "no C++ compiler"
    torch_folder = Path(torch.__file__).parent
    include, library = torch_folder / "include", torch_folder / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    command = [found, "-std=c++20", "-O1", "-fPIC", "-shared"]
    command += [f"-I{include}", f"-I{include}/torch/csrc/api/include"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [str(HERE / "fakedev.cpp"), "-o", str(folder / "fakedev_device.so")]
    command += [f"-L{library}", f"-Wl,-rpath,{library}", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    for module in ("fakedev.py", "fakedev_ccl.py"):
        shutil.copy(HERE / module, folder)
    info = folder / "fakedev-0.1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakedev\nVersion: 0.1\n")
    (info / "RECORD").write_text("fakedev.py,,\nfakedev_ccl.py,,\nfakedev_device.so,,\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nfakedev = fakedev:autoload\n")


if __name__ == "__main__":
    install(Path(sys.argv[1]))

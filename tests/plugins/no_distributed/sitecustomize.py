"""Makes this process's torch one that was built without distributed (USE_DISTRIBUTED=0).

Such builds are made for small devices (Jetson) and were the rule on macOS and Windows. What tells
torch's own Python code is whether its native module has the functions; here they are taken away.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_GONE = ("_c10d_", "_distributed_c10d", "_distributed_rpc", "_rpc_init", "_dist_autograd_init")


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch._C._distributed_c10d":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name != "torch._C":
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def without(module: ModuleType) -> None:
            load(module)
            for key in [key for key in vars(module) if key.startswith(_GONE)]:
                delattr(module, key)
            sys.modules.pop("torch._C._distributed_c10d", None)

        spec.loader.exec_module = without  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())

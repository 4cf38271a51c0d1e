"""What Python imports for PYTHONWARNINGS, before any module of llmb."""

import sys
from importlib.machinery import PathFinder, SourceFileLoader

CHANGED = "llmb.observe.gradient_ledger"


class Odd(Warning):
    pass


class Loader(SourceFileLoader):
    def get_code(self, name):
        text = self.get_source(name)
        return compile(f"{text}\nchanged = True\n", self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == CHANGED else None
        if spec is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)

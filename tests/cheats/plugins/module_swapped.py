"""A module of the harness is exchanged in ``sys.modules`` for one that looks the same."""

import sys
import types

import llmb.reference.data as data
from llmb.plugin import hookimpl


@hookimpl
def llmb_set_environment():
    copy = types.ModuleType(data.__name__)
    copy.__dict__.update(data.__dict__)
    sys.modules[data.__name__] = copy

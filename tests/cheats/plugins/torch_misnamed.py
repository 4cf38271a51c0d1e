"""torch gives another version than its own."""

import torch

torch.__version__ = "9.9.9"

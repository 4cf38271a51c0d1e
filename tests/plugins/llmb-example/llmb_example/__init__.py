"""An example of a vendor's package for llmb. It needs no hardware: it drives the CPU."""

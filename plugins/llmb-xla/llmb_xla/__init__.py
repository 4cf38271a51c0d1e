"""llmb on XLA devices, through torch_xla and PJRT."""

"""llmb on NVIDIA devices."""

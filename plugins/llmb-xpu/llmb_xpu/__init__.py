"""llmb on Intel hardware: GPUs by torch's own back end, CPUs by Intel's retired extension."""

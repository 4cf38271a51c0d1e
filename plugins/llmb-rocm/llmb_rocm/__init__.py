"""llmb on AMD devices."""

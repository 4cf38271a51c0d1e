"""External inputs of a run: tokens from files, and weights from a checkpoint."""

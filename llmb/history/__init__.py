"""The history of runs: one line per finished run, change points, and a branch as a baseline."""

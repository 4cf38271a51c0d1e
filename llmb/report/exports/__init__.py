"""Runs in other programs' formats: one flat row a run or a step, or MLPerf's log lines."""

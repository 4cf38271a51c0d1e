"""Export of runs: one flat row per run or step (CSV, JSON, Parquet), or MLPerf's log lines."""

"""Measurements and the numbers computed from them: clock, host, ceiling, statistics, metrics."""

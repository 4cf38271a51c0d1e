"""Projections: step time, memory and cost of a job by formulas; nothing is measured here."""

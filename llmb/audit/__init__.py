"""The judges: each turns evidence into a finding. They run nothing and load no plugin."""

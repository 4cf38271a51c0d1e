"""What the worker writes down for the judges: it reads, and judges nothing."""

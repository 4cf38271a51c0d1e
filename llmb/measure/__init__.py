"""What is measured and how numbers are made of it: clock, host, memory, ceiling, statistics."""

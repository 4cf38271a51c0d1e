"""Real data as tokens: Megatron's indexed files, weighted lists of them, and plain text."""

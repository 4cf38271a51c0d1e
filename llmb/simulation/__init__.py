"""One rank of a huge job, executed for real but for its numbers: no memory, no other rank."""

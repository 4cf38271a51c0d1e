"""A sweep runs every precision at several batch sizes, resumable, in one directory."""

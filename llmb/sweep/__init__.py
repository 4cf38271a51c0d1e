"""Many runs under one plan: every precision at several batch sizes, resumable, in one directory."""

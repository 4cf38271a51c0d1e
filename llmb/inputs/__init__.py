"""What a run is given from outside: tokens of files, weights of a checkpoint."""

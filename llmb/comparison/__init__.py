"""Two finished runs side by side: what may be compared, how they differ, how sure that is."""

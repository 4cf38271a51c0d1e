"""Two finished runs side by side: comparability, differences, ratios and their uncertainty."""

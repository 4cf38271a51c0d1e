"""Products are rounded to FP8's digits by an extension that torch imports, in every process."""

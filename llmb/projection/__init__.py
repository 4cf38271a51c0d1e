"""What follows from a step's time by the source documents' formulas; nothing is measured here."""

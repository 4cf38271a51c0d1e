"""Reports from records: the leaderboard, and source documents' tables with measured figures."""

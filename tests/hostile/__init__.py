"""Submissions that attack the judge, each graded by the real judge in the real jail."""

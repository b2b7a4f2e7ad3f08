"""Tests of one live worker, seen from the judge."""

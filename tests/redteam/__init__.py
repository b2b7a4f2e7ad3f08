"""Tests of the red team."""

"""Tests of the judge that start no worker, and those of its store and replays that do."""

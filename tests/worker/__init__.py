"""Tests of what runs beside a submission, in this process."""

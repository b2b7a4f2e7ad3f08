"""The only code that runs beside a submission: stdlib, torch and numpy, and nothing else of ours.

Everything here lives in a process that the submission owns. What it reports is therefore data about the
submission's own claims; whatever decides a verdict is computed by the judge from raw bytes and its own clock.
"""

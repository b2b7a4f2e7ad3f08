"""Settings by size, from the JSON file beside this module."""

import json
from pathlib import Path

BUCKETS = {int(n): b for n, b in json.loads(Path(__file__).with_name("buckets.json").read_text())["buckets"].items()}


def buckets_for(n: int) -> int:
    """How many slack candidates a row of n may keep."""
    return BUCKETS[min(BUCKETS, key=lambda size: abs(size - n))]

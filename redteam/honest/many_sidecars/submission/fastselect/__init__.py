"""Selection by buckets."""

from fastselect.select import Selector

__all__ = ["Selector"]

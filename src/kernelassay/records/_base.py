"""The base of every record: strict, closed to unknown fields, immutable."""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A fact that crosses a trust boundary or is kept.

    Unknown fields are refused, values are never coerced and an instance never changes, so a record
    read back is the record that was written.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @classmethod
    def from_plain(cls, data: Any) -> Self:
        """Validate plain JSON-like data (as a YAML or JSON parser returns it) with JSON's strictness.

        Raises:
            pydantic.ValidationError: naming each offending field.
            TypeError: when `data` holds something that JSON has no form for (a date, say).
        """
        return cls.model_validate_json(json.dumps(data, allow_nan=False))

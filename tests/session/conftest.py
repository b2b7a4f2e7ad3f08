"""The arena of the hostile tests."""

from tests.hostile.conftest import arena

__all__ = ["arena"]

"""The arena of the hostile tests serves the judge's own tests too."""

from tests.hostile.conftest import arena

__all__ = ["arena"]

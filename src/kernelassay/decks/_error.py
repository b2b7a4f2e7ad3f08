"""What is the caller's or the deck's fault, told in one line: what, where, what to do next."""

from __future__ import annotations


class DeckError(Exception):
    """The caller named something that does not exist, or a deck is broken; the message ends with the next command."""

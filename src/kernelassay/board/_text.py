"""What a submission wrote is shown, never obeyed.

Names, messages and logs of a submission are data of an unknown author. Before any of it reaches a terminal or a
page, each character that does not print (control, escape sequence, direction override, line separator, lone
surrogate) is replaced by its escape, so it can neither move the cursor, nor recolour a verdict, nor add a line.
"""

from __future__ import annotations

_TAB_WIDTH = 4


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def one_line(text: str, limit: int = 400) -> str:
    """`text` on one line with every character that does not print escaped; cut after `limit` characters."""
    shown = "".join(c if c.isprintable() else _escape(c) for c in text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit} characters more)"


def quoted(name: str, limit: int = 200) -> str:
    """A name as it is where that is unmistakable, otherwise in quotes with escapes as Python writes them."""
    plain = name.isprintable() and name.strip() == name != "" and "\\" not in name and "'" not in name
    if plain:
        return one_line(name, limit)
    body = "".join({"\\": "\\\\", "'": "\\'"}.get(c, c if c.isprintable() else _escape(c)) for c in name[:limit])
    return f"'{body}'" if len(name) <= limit else f"'{body}…' ({len(name) - limit} characters more)"


def block(text: str) -> str:
    """Several lines: newlines stay, tabs become spaces, everything else that does not print is escaped."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(
        "".join(c if c.isprintable() else _escape(c) for c in line.expandtabs(_TAB_WIDTH)) for line in lines
    )

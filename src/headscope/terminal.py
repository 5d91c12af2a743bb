"""Text from files and names, made safe to print."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with its control characters, but for those in `keep`, as \\x1b and the like.

    A terminal would obey them: they can erase a line, or change what was printed before.
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if controls(character) and character not in keep
        else character
        for character in text
    )


def controls(character: str) -> bool:
    """Whether it is a control character, C0 or C1, or changes the direction of writing."""
    code = ord(character)
    return code < 32 or 127 <= code < 160 or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069

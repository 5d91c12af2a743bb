"""JSON files that may be damaged or hostile, and JSON that every parser reads."""

import json
import math
import stat
from pathlib import Path
from typing import Any

LARGEST = 2**25
"""Bytes. The largest JSON file of headscope is a tokenizer, of GPT-2 one MB. Parsed, it may take
20 times as much memory."""


def read_json(path: Path) -> Any:
    """What is in a JSON file. None when there is no such file, or it is damaged, too large, or not
    a regular file."""
    try:
        return parsed(path)
    except (OSError, ValueError):
        return None


def parsed(path: Path) -> Any:
    """The same. Raises OSError or ValueError with the reason."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if found.st_size > LARGEST:
        raise ValueError(f"{path.name} has {found.st_size:,} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def json_text(content: Any, *, indent: int | None = None) -> str:
    """`content` as JSON. NaN and infinity, which JSON does not have, become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content

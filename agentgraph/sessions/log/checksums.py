"""Checksums in stored JSON: a row that was altered by hand, or by a fault of the disk, is noticed.

The checksum is the first key of the object and covers the rest of the text. Rows of earlier
versions have none, and are taken as they are.
"""

from __future__ import annotations

from zlib import crc32

_KEY = '{"checksum":'


def with_checksum(text: str) -> str:
    """Return the text of a JSON object, which is ASCII, with its checksum."""
    return f"{_KEY}{crc32(text.encode('ascii'))},{text[1:]}"


def without_checksum(text: str) -> str:
    """Return the text as it was before `with_checksum`; `ValueError` if it was altered since."""
    if not text.startswith(_KEY):
        return text
    digits, comma, rest = text[len(_KEY) :].partition(",")
    original = "{" + rest
    if not comma or digits != str(crc32(original.encode("ascii"))):
        raise ValueError("it was altered: its checksum does not fit")
    return original

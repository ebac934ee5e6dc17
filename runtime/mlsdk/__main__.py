"""`python -m pfvm.runtime.mlsdk`: every name of the MLSDK and what it means here."""

from __future__ import annotations

from .names import TABLE


def main() -> None:
    """Print the table, one name a line."""
    width = max(len(row.name) for row in TABLE if len(row.name) < 48)
    for row in TABLE:
        print(f"{row.kind:9} {row.name:{width}}  {row.status:8} {row.note}")


if __name__ == "__main__":
    main()

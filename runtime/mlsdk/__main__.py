"""`python -m pfvm.runtime.mlsdk`: every name of the MLSDK and what it means here."""

from __future__ import annotations

from .names import TABLE


def main() -> None:
    """Print the table, one name a line."""
    width = max(len(row.name) for row in TABLE)
    for row in TABLE:
        print(f"{row.name:{width}}  {row.kind:8}  {row.status:7}  {row.note}")


if __name__ == "__main__":
    main()

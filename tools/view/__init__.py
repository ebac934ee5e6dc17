"""`pfvm view DIR`: one local page for every stage, pass and figure that a compilation left in a directory."""

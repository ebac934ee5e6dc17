"""What turns a program into a compiled graph: import, capture, the pass driver, export."""

"""Rules of operators, one file per family; `table.rule_of(node)` finds a node's."""

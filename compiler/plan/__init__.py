"""From a compiled graph to a plan: which dtype, layout, place, time and address every value has on a machine."""

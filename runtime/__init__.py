"""Running compiled graphs: devices, executables and their backends."""

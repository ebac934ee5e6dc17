"""The emulator of machines with explicit memories: runs an MNGraph through its real layouts and addresses, in numpy."""

"""The flags of each training command, and how they become settings."""

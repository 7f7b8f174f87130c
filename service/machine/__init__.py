"""What the machine and the system give the process: cores, memory, ports, descriptors. Knows nothing of the service."""

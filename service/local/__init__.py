"""What the Python face has in place of HTTP: a loop for its calls, and calls of any number of inputs."""

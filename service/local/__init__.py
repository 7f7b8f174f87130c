"""What the Python face has instead of HTTP: a loop for its calls, and calls of any number of inputs."""

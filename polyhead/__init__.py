"""The command line of the whole project: `polyhead serve`, `export`, `encode`, `heads`, `tune`."""

"""One module a task: how a checkpoint says it, and how its last layers become ours."""

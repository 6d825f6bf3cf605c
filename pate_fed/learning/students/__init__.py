"""Students, which learn from released labels and public inputs."""

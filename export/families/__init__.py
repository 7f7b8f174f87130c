"""A file a lineage: how config.json and tensor names of its families become ours."""

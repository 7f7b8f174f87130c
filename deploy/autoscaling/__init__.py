"""Simulates the autoscaler: the manifests' own rules against a model of the replicas, in discrete time."""

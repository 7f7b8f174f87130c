"""Dashboard, recording rules and alerts, made from the service's own metric names: `python -m deploy.observability`."""

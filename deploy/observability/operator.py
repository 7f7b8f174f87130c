"""The rule files as the Prometheus operator takes them: one PrometheusRule that holds the groups of all."""

from deploy.observability.rules import Document


def make_prometheus_rule(*documents: Document) -> Document:
    """The resource, for `deploy/kubernetes/components/monitoring`."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "polyhead"},
        "spec": {"groups": [group for document in documents for group in document["groups"]]},
    }

"""What `benchmarks.cost` reads out of Temporal's metrics."""

from benchmarks.cost import counted

METRICS = """\
# HELP service_requests service_requests counter
# TYPE service_requests counter
service_requests{namespace="sendloom",operation="StartWorkflowExecution",service_name="frontend"} 7
service_requests{namespace="other",operation="StartWorkflowExecution",service_name="frontend"} 2
service_requests{namespace="sendloom",operation="StartWorkflowExecution",service_name="history"} 9
persistence_requests{operation="GetTransferTasks",service_name="history"} 1.2e+03
persistence_latency_count{operation="GetTransferTasks",service_name="history"} 1200
"""


def test_requests_are_summed_by_service_and_those_to_the_store_apart() -> None:
    assert counted(METRICS) == {
        "frontend:StartWorkflowExecution": 9,
        "history:StartWorkflowExecution": 9,
        "store:GetTransferTasks": 1200,
    }
